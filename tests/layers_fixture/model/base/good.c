#include "base/good.h"
#include <gsl/gsl_fit.h>
#include <csv.h>
