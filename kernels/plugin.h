/* Libraries that are opened at run time, so that a machine without what they need starts the program all the same. */
#ifndef OT_KERNELS_PLUGIN_H
#define OT_KERNELS_PLUGIN_H

/* Opens the library of that name beside the program or in ../lib, or the file that the environment's variable
 * `named_by` names. `flags` as for dlopen. It stays open until the program ends. NULL: dlerror() says why, or
 * nothing where no such file is there. */
void *ot_plugin_open(const char *name, const char *named_by, int flags);

#endif
