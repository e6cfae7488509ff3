#include "../exec/device/device.h"
