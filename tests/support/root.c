#include "tests/support/root.h"

#include <string.h>

#include "tests/support/test.h"
#include "tests/support/tree.h"

char *root;
outcome result;

int open_root(void **state)
{
    (void)state;
    root = tree_open();
    return 0;
}

int close_root(void **state)
{
    (void)state;
    tree_close(root);
    return 0;
}

void expect_in(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, text);
}
