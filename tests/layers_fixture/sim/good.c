#include "sim/simulate.h"
#include <gsl/gsl_rng.h>
