/* Planted: the test of the folder order must find this include. */
#include "tools/option.h"
