/* Planted: names one device where any will do. */
static const char *const device = "cuda";
