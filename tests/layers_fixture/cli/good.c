#include "html/page.h"
#include <getopt.h>
