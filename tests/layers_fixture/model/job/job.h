#include "base/good.h"
#include <ini.h>
