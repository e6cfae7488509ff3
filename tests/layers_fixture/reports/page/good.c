#include "base/good.h"
#include <stdio.h>
