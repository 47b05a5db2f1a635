/* What the store's tests share: empty directories, chunks of odd sizes with a known content, and moves. */
#ifndef OT_TESTS_SUPPORT_STORE_H
#define OT_TESTS_SUPPORT_STORE_H

#include "offload/store.h"

typedef struct folders {
    char root[32];
    char paths[3][48];
    const char *list[3];
} folders;

/* The last line that was logged since open_folders. */
extern char last_line[2048];

/* cmocka's set-up and tear-down. Tear-down fails where a test has left something in a folder. */
int open_folders(void **state);
int close_folders(void **state);

#define IN_FOLDERS(test) cmocka_unit_test_setup_teardown(test, open_folders, close_folders)

void swap_path(const folders *f, size_t i, char out[128]);

/* A content that differs by chunk, version and place, and whether `data` is it. Whole words of 8 bytes. */
void fill(unsigned char *data, uint64_t bytes, size_t chunk, int version);
int holds(const unsigned char *data, uint64_t bytes, size_t chunk, int version);

/* Moves one chunk and returns how it went; the text of a failure is the thread's. */
ot_status move_chunk(ot_store *store, ot_block_direction direction, size_t chunk, void *data);

/* Depth 4, blocks of 64 KiB, the first `directories` folders. */
ot_store_options options_for(const folders *f, size_t directories, const ot_store_chunk chunks[],
                             size_t count);

enum { SIZES = 4, LARGEST = (1 << 20) + 4096 };
extern const ot_store_chunk sizes[SIZES];

/* All of `sizes`, two versions, all read back and compared. Stops at the first failure. */
ot_status round_trip(ot_store *store, unsigned char *memory);

#endif
