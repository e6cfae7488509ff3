#include "good.h"
#include <gsl/gsl_fit.h>
#include <csv.h>
#include <jansson.h>
#include <ini.h>
#include <sys/stat.h>
