#include "device/device.h"
#include "base/good.h"
#include "kernels/kernels.h"
