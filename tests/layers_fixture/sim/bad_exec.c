#include "../exec/device.h"
