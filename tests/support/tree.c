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

char *tree_read(const char *path, size_t *bytes)
{
    struct stat facts;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &facts) != 0)
        fail_msg("%s is missing", path);
    char *data = malloc((size_t)facts.st_size + 1);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)facts.st_size, file);
    assert_int_equal(*bytes, facts.st_size);
    fclose(file);
    return data;
}

void tree_expect_same(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    char *x = tree_read(a, &a_bytes), *y = tree_read(b, &b_bytes);
    if (a_bytes != b_bytes || memcmp(x, y, a_bytes) != 0)
        fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
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
