/* A temporary folder that a test fills with files: a made-up /proc and /sys. */
#ifndef OT_TESTS_SUPPORT_TREE_H
#define OT_TESTS_SUPPORT_TREE_H

#include <stddef.h>

/* Makes a new empty folder and returns its path, which tree_close frees. */
char *tree_open(void);

/* Writes `text` to the file `path`, which begins with '/', below `root`, and makes the folders in between. */
void tree_write(const char *root, const char *path, const char *text);

/* The whole file `path`, for the caller to free, and its length. */
char *tree_read(const char *path, size_t *bytes);

/* Fails where two files are not the same, byte for byte. */
void tree_expect_same(const char *a, const char *b);

/* Removes the folder with all that is in it. */
void tree_close(char *root);

#endif
