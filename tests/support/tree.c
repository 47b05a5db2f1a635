/* Temporary folders. Any failure fails the test. */
#include "tests/support/tree.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"

char *tree_open(void)
{
    const char *folder = getenv("TMPDIR");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/offtrain-test-XXXXXX", folder != NULL ? folder : "/tmp");
    assert_non_null(mkdtemp(path));
    char *root = strdup(path);
    assert_non_null(root);
    return root;
}

void tree_write(const char *root, const char *path, const char *text)
{
    char full[PATH_MAX];
    assert_in_range(snprintf(full, sizeof full, "%s%s", root, path), 1, sizeof full - 1);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700); /* may be there */
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int remove_entry(const char *path, const struct stat *facts, int type, struct FTW *walk)
{
    (void)facts;
    (void)type;
    (void)walk;
    return remove(path);
}

void tree_close(char *root)
{
    assert_int_equal(nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(root);
}
