#include "runtime/megatron/habits.h"
