/* Runs a fuzz target where there is no libFuzzer: mutates files of a corpus for some seconds.
 *
 *     fuzz_X SECONDS FOLDER [LAST]
 *
 * feeds every file of FOLDER and of the folders in it, then mutants of them, always the same ones in the same order. The
 * input at hand is in the file LAST, which survives whatever happens to the process: `fuzz_X 0 FOLDER-WITH-IT` runs it
 * again. With 0 seconds there are no mutants. */
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { FILES_MAX = 256, INPUT_MAX = 1 << 16 };

static struct {
    size_t bytes;
    uint8_t *data;
} corpus[FILES_MAX];
static size_t corpus_count;

static uint64_t random_state = 1;

/* Below n (Marsaglia's xorshift64*). */
static size_t below(size_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (size_t)(random_state * UINT64_C(0x2545F4914F6CDD1D) >> 33) % n;
}

static int add_file(const char *path, const struct stat *facts, int type, struct FTW *walk)
{
    (void)walk;
    if (type != FTW_F || corpus_count == FILES_MAX || facts->st_size > INPUT_MAX)
        return 0;
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc((size_t)facts->st_size + 1);
    if (file == NULL || data == NULL) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    corpus[corpus_count].data = data;
    corpus[corpus_count++].bytes = fread(data, 1, (size_t)facts->st_size, file);
    fclose(file);
    return 0;
}

static int by_content(const void *a, const void *b)
{
    const uint8_t *const *x = (const uint8_t *const *)((const char *)a + sizeof(size_t)),
                         *const *y = (const uint8_t *const *)((const char *)b + sizeof(size_t));
    size_t n = *(const size_t *)a, m = *(const size_t *)b;
    int order = memcmp(*x, *y, n < m ? n : m);
    return order != 0 ? order : n < m ? -1 : n > m;
}

/* ---- Mutants ---- */

/* Texts at which parsers turn. */
static const char *const tokens[] = {
    "0",
    "-1",
    "1",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e9",
    "1e999",
    "0.5",
    "null",
    "true",
    "false",
    "{}",
    "[]",
    "\"\"",
    "[[[[",
    "{\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\xef\xbb\xbf",
    "\xff",
    "\r\n",
    "\n",
};

static size_t insert(uint8_t *data, size_t bytes, size_t at, const void *what, size_t n)
{
    if (bytes + n > INPUT_MAX)
        return bytes;
    memmove(data + at + n, data + at, bytes - at);
    memcpy(data + at, what, n);
    return bytes + n;
}

static size_t cut(uint8_t *data, size_t bytes, size_t at, size_t n)
{
    n = n < bytes - at ? n : bytes - at;
    memmove(data + at, data + at + n, bytes - at - n);
    return bytes - n;
}

/* Digits around `at` become another number. */
static size_t change_number(uint8_t *data, size_t bytes, size_t at, const char *token)
{
    size_t begin = at, end = at;
    while (end < bytes && (data[end] < '0' || data[end] > '9'))
        end++;
    begin = end;
    while (end < bytes && data[end] >= '0' && data[end] <= '9')
        end++;
    bytes = cut(data, bytes, begin, end - begin);
    return insert(data, bytes, begin, token, strlen(token));
}

static size_t mutate(uint8_t *data, size_t bytes)
{
    uint8_t part[64];
    size_t at = below(bytes + 1), n;
    const char *token = tokens[below(sizeof tokens / sizeof *tokens)];
    switch (below(8)) {
    case 0:
        if (at < bytes)
            data[at] ^= (uint8_t)(1 << below(8));
        return bytes;
    case 1:
        if (at < bytes)
            data[at] = (uint8_t)below(256);
        return bytes;
    case 2:
        return insert(data, bytes, at, token, strlen(token));
    case 3:
        return cut(data, bytes, at, 1 + below(below(2) ? 4 : 64));
    case 4: /* a part twice, or elsewhere */
        n = bytes - at < sizeof part ? bytes - at : below(sizeof part);
        memcpy(part, data + at, n);
        return insert(data, bytes, below(bytes + 1), part, n);
    case 5: /* the rest of another file */
        n = below(corpus_count);
        if (corpus[n].bytes > 0) {
            size_t from = below(corpus[n].bytes), rest = corpus[n].bytes - from;
            rest = rest < INPUT_MAX - at ? rest : INPUT_MAX - at;
            memcpy(data + at, corpus[n].data + from, rest);
            return at + rest;
        }
        return bytes;
    default:
        return change_number(data, bytes, at, token);
    }
}

/* ---- Running ---- */

static void *map_last(const char *path)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
    void *out = fd >= 0 && ftruncate(fd, INPUT_MAX) == 0
                    ? mmap(NULL, INPUT_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                    : MAP_FAILED;
    if (out == MAP_FAILED) {
        fprintf(stderr, "cannot map %s\n", path);
        exit(1);
    }
    close(fd);
    return out;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s SECONDS FOLDER [LAST]\n", argv[0]);
        return 2;
    }
    if (nftw(argv[2], add_file, 16, FTW_PHYS) != 0 || corpus_count == 0) {
        fprintf(stderr, "%s: no corpus\n", argv[2]);
        return 1;
    }
    qsort(corpus, corpus_count, sizeof *corpus, by_content); /* not in the file system's order */
    for (size_t i = 0; i < corpus_count; i++)
        LLVMFuzzerTestOneInput(corpus[i].data, corpus[i].bytes);
    uint8_t *last = argc > 3 ? map_last(argv[3]) : NULL, *input = malloc(INPUT_MAX);
    time_t end = time(NULL) + atol(argv[1]);
    uint64_t runs = 0;
    while (input != NULL && time(NULL) < end)
        for (int i = 0; i < 100; i++, runs++) {
            size_t from = below(corpus_count), bytes = corpus[from].bytes;
            memcpy(input, corpus[from].data, bytes);
            for (size_t n = 1 + below(6); n > 0; n--)
                bytes = mutate(input, bytes);
            if (last != NULL)
                memset(mempcpy(last, input, bytes), 0, INPUT_MAX - bytes);
            LLVMFuzzerTestOneInput(input, bytes);
        }
    printf("%zu files, %llu mutants\n", corpus_count, (unsigned long long)runs);
    free(input);
    if (last != NULL) {
        munmap(last, INPUT_MAX);
        unlink(argv[3]);
    }
    for (size_t i = 0; i < corpus_count; i++)
        free(corpus[i].data);
    return 0;
}
