#include "exec/device.h"
