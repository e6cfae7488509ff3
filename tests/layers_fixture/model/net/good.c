#include "base/good.h"
#include <jansson.h>
