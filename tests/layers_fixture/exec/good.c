#include "device.h"
#include "good.h"
#include "kernels.h"
