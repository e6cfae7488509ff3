#include "good.h"
#include <getopt.h>
