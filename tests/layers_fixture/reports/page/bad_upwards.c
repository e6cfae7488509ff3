#include "html/page.h"
