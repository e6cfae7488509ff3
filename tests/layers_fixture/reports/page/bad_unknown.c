#include "page/nowhere.h"
