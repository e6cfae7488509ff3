#include "good.h"
#include <stdio.h>
