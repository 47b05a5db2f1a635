/* Collective operations against what each rank can work out alone, on odd sizes: between threads, and between processes
 * where mpirun has started this program. Faults: a damaged way, a rank that does not come, one that gives up, strangers. */
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { RANKS = 4, GUARD = 0x5a };

typedef struct rig {
    ot_group *group;
    int rank, size;
    ot_device *device;
    ot_stream *stream;
    char *memory; /* of the device */
} rig;

static void open_rig(rig *g, ot_group *group, uint64_t bytes)
{
    const ot_device_options device = {
        .kind = "cpu", .memory_bytes = bytes + (8 << 20), .threads = 1, .jitter_ns = 20000};
    const ot_stream_options stream = {.kind = OT_STREAM_COLLECTIVE, .name = "collective"};
    void *base;
    *g = (rig){.group = group, .rank = ot_group_rank(group), .size = ot_group_size(group)};
    must(ot_device_open(&device, &g->device) == OT_OK);
    must(ot_stream_open(g->device, &stream, &g->stream) == OT_OK);
    must(ot_device_arena_open(g->device, "test", bytes, &base) == OT_OK);
    g->memory = base;
}

/* The same on all ranks, and nowhere a number that is easy to come by. */
static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 77 + i * 131 + i / 4096);
}

static float value_of(int rank, size_t i)
{
    return ((float)((i * 2654435761u) % 1000003) - 5e5f) * (rank % 2 ? 1e-3f : 1.7f) + (float)rank;
}

static void gathers(rig *g, size_t shard)
{
    size_t bytes = shard * (size_t)g->size;
    memset(g->memory, GUARD, bytes + 64);
    for (size_t i = 0; i < shard; i++)
        g->memory[(size_t)g->rank * shard + i] = (char)byte_of(g->rank, i);
    ot_group_gather(g->group, g->stream, "bytes", g->memory, shard);
    must(ot_stream_synchronize(g->stream) == OT_OK);
    for (int r = 0; r < g->size; r++)
        for (size_t i = 0; i < shard; i++)
            must((unsigned char)g->memory[(size_t)r * shard + i] == byte_of(r, i));
    for (size_t i = 0; i < 64; i++)
        must(g->memory[bytes + i] == GUARD);
}

static void scatters(rig *g, size_t shard)
{
    float *x = (float *)(void *)g->memory;
    size_t count = shard * (size_t)g->size;
    for (size_t i = 0; i < count; i++)
        x[i] = value_of(g->rank, i);
    ot_group_scatter(g->group, g->stream, "values", x, shard);
    must(ot_stream_synchronize(g->stream) == OT_OK);
    for (size_t i = 0; i < count; i++) {
        float expected = value_of(0, i);
        for (int r = 1; r < g->size; r++)
            expected += value_of(r, i);
        if (i / shard != (size_t)g->rank)
            expected = value_of(g->rank, i);
        must(memcmp(&x[i], &expected, sizeof expected) == 0);
    }
}

static void sums(rig *g, size_t count)
{
    double *x = malloc((count + 1) * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = (double)value_of(g->rank, i) / 3;
    x[count] = GUARD;
    must(ot_group_sum(g->group, "numbers", x, count) == OT_OK);
    for (size_t i = 0; i < count; i++) {
        double expected = (double)value_of(0, i) / 3;
        for (int r = 1; r < g->size; r++)
            expected += (double)value_of(r, i) / 3;
        must(memcmp(&x[i], &expected, sizeof expected) == 0);
    }
    must(x[count] > GUARD - 1 && x[count] < GUARD + 1);
    free(x);
}

static void broadcasts(rig *g, size_t bytes)
{
    unsigned char *x = malloc(bytes + 1);
    for (int root = 0; root < g->size; root++) {
        for (size_t i = 0; i < bytes; i++)
            x[i] = g->rank == root ? byte_of(root, i) : 0;
        x[bytes] = GUARD;
        must(ot_group_broadcast(g->group, "bytes", root, x, bytes) == OT_OK);
        for (size_t i = 0; i < bytes; i++)
            must(x[i] == byte_of(root, i));
        must(x[bytes] == GUARD);
    }
    free(x);
}

/* Rank 0 hears from all others, in turn. */
static void collects(rig *g, size_t bytes)
{
    unsigned char *x = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        x[i] = byte_of(g->rank, i);
    if (g->rank != 0)
        must(ot_group_send(g->group, "bytes", 0, x, bytes) == OT_OK);
    for (int r = 1; r < g->size && g->rank == 0; r++) {
        must(ot_group_receive(g->group, "bytes", r, x, bytes) == OT_OK);
        for (size_t i = 0; i < bytes; i++)
            must(x[i] == byte_of(r, i));
    }
    free(x);
}

/* More than may be on their way at once, each on what the one before has left. */
static void streams(rig *g)
{
    enum { MANY = 200, COUNT = 5 };
    float *x = (float *)(void *)g->memory, expected = 1;
    for (int i = 0; i < COUNT * g->size; i++)
        x[i] = 1;
    for (int k = 0; k < MANY; k++) {
        ot_group_scatter(g->group, g->stream, "values", x, COUNT);
        ot_group_gather(g->group, g->stream, "values", x, COUNT * sizeof *x);
        expected = expected * (float)g->size > 1e30f ? 0 : expected * (float)g->size;
        if (expected <= 0) {
            ot_copy_zero(g->stream, x, sizeof *x * COUNT * (size_t)g->size);
            expected = 0;
        }
    }
    must(ot_stream_synchronize(g->stream) == OT_OK);
    for (int i = 0; i < COUNT * g->size; i++)
        must(memcmp(&x[i], &expected, sizeof expected) == 0);
}

static void everything(ot_group *group, void *context)
{
    static const size_t sizes[] = {0, 1, 7, 4097, (1 << 18) + 5};
    size_t longest = (16 << 20) + 3;
    rig g;
    (void)context;
    open_rig(&g, group, (uint64_t)longest * (uint64_t)ot_group_size(group) + 64);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gathers(&g, sizes[i]);
        if (sizes[i] > 0)
            scatters(&g, sizes[i]);
        sums(&g, sizes[i]);
        broadcasts(&g, sizes[i]);
        collects(&g, sizes[i]);
    }
    gathers(&g, longest);
    collects(&g, longest);
    streams(&g);
    ot_device_close(g.device);
}

static void operations_do_what_they_say(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS; size++)
        ranks_run(size, 60, everything, NULL);
}

/* ---- faults ---- */

static void says(const char *text)
{
    if (strstr(ot_error_text(), text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, ot_error_text());
}

typedef struct opening {
    ot_transport *transport;
    double timeout_s;
    ot_group *group;
    ot_status status;
    ot_error error;
} opening;

static void *open_one(void *argument)
{
    opening *o = argument;
    const ot_group_options options = {o->transport, o->timeout_s};
    o->status = ot_group_open(&options, &o->group);
    o->error = ot_error_take();
    return NULL;
}

static void open_all(rank_hub *r, opening openings[], int size, double timeout_s)
{
    pthread_t threads[RANKS];
    for (int rank = 0; rank < size; rank++) {
        openings[rank] = (opening){.transport = ranks_transport(r, rank), .timeout_s = timeout_s};
        assert_int_equal(pthread_create(&threads[rank], NULL, open_one, &openings[rank]), 0);
    }
    for (int rank = 0; rank < size; rank++)
        pthread_join(threads[rank], NULL);
}

static void a_damaged_way_is_named(void **state)
{
    (void)state;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            if (from == to)
                continue;
            opening openings[RANKS];
            char text[64];
            rank_hub *r = ranks_open(3, (ranks_fault){from, to});
            open_all(r, openings, 3, 0.3);
            for (int rank = 0; rank < 3; rank++)
                assert_int_equal(openings[rank].status, OT_ERR_DEVICE); /* the others miss that one */
            snprintf(text, sizeof text, "rank %d sends arrives damaged at rank %d", from, to);
            assert_int_equal(ot_error_raise(&openings[to].error), OT_ERR_DEVICE);
            says(text);
            ranks_close(r);
        }
}

/* Only rank 1 of three goes on. */
static void who_does_not_come_is_named(void **state)
{
    (void)state;
    opening openings[RANKS];
    double number = 1;
    rig g;
    rank_hub *r = ranks_open(3, (ranks_fault){-1, -1});
    open_all(r, openings, 3, 2);
    ot_group_set_step(openings[1].group, 17);
    assert_int_equal(ot_group_sum(openings[1].group, "the loss", &number, 1), OT_ERR_DEVICE);
    says("rank 1 of 3, step 17, all-reduce of the loss: waited 2 s for rank 0, 2;");
    for (int rank = 0; rank < 3; rank++)
        ot_group_close(openings[rank].group);
    ranks_close(r);

    r = ranks_open(3, (ranks_fault){-1, -1});
    open_all(r, openings, 3, 2);
    open_rig(&g, openings[1].group, 4096);
    ot_group_gather(g.group, g.stream, "model.layers.3", g.memory, 16);
    assert_int_equal(ot_stream_synchronize(g.stream), OT_ERR_DEVICE);
    says("all-gather of model.layers.3");
    ot_device_close(g.device);
    for (int rank = 0; rank < 3; rank++)
        ot_group_close(openings[rank].group);
    ranks_close(r);
}

static void giving_up_ends_what_waits(void **state)
{
    (void)state;
    opening openings[RANKS];
    rig g;
    rank_hub *r = ranks_open(2, (ranks_fault){-1, -1});
    open_all(r, openings, 2, 2);
    open_rig(&g, openings[0].group, 4096);
    ot_group_gather(g.group, g.stream, "weights", g.memory, 16);
    ot_group_cancel(g.group);
    assert_int_equal(ot_stream_synchronize(g.stream), OT_ERR_DEVICE);
    says("this rank has failed");
    ot_device_close(g.device);
    for (int rank = 0; rank < 2; rank++)
        ot_group_close(openings[rank].group);
    ranks_close(r);
}

/* ---- by TCP ---- */

/* A port that is free now, and a socket that has it where it is to be taken. */
static uint32_t some_port(int *holder)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && bind(fd, (struct sockaddr *)&at, bytes) == 0 && listen(fd, 1) == 0);
    must(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    if (holder != NULL)
        *holder = fd;
    else
        close(fd);
    return ntohs(at.sin_port);
}

typedef struct guest {
    pthread_t thread;
    ot_world world;
    double timeout_s;
    ranks_body *body;
    ot_status status;
    ot_error error;
} guest;

static void *guest_main(void *argument)
{
    guest *g = argument;
    ot_group_options options = {.timeout_s = 60};
    ot_group *group;
    g->status = ot_transport_open_tcp(&g->world, g->timeout_s, &options.transport);
    g->error = ot_error_take();
    if (g->status != OT_OK)
        return NULL;
    must(ot_group_open(&options, &group) == OT_OK);
    g->body(group, NULL);
    ot_group_close(group);
    return NULL;
}

static void send_guest_to(const char *host, guest *g, int rank, int size, uint32_t port, double timeout_s,
                          ranks_body *body)
{
    *g = (guest){.world = {.size = size, .here = size, .host = host, .port = port, .rank = rank},
                 .timeout_s = timeout_s,
                 .body = body};
    assert_int_equal(pthread_create(&g->thread, NULL, guest_main, g), 0);
}

static void send_guest(guest *g, int rank, int size, uint32_t port, double timeout_s, ranks_body *body)
{
    send_guest_to("localhost", g, rank, size, port, timeout_s, body);
}

/* One operation, for who is only to meet. */
static void count_ranks(ot_group *group, void *context)
{
    (void)context;
    double number = 1;
    must(ot_group_sum(group, "ranks", &number, 1) == OT_OK && number == ot_group_size(group));
}

static void ranks_meet_by_tcp(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        guest guests[RANKS];
        uint32_t port = some_port(NULL);
        for (int rank = size - 1; rank >= 0; rank--) /* the last to come is who listens */
            send_guest(&guests[rank], rank, size, port, 60, size == 3 ? everything : count_ranks);
        for (int rank = 0; rank < size; rank++) {
            pthread_join(guests[rank].thread, NULL);
            assert_int_equal(guests[rank].status, OT_OK);
        }
    }
}

/* One with nonsense, one of another world, one who says nothing and goes. */
static void strangers_are_turned_away(void **state)
{
    (void)state;
    static const unsigned char words[3][24] = {"GET / HTTP/1.1\r\n\r\n",
                                               {1, 107, 110, 114, 116, 102, 102, 111, 9}};
    const size_t sizes[] = {24, 24, 0};
    guest guests[2];
    uint32_t port = some_port(NULL);
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    send_guest(&guests[0], 0, 2, port, 60, count_ranks);
    for (int i = 0; i < 3; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        while (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0) { /* it does not listen yet */
            close(fd);
            sched_yield();
            fd = socket(AF_INET, SOCK_STREAM, 0);
        }
        assert_int_equal(send(fd, words[i], sizes[i], MSG_NOSIGNAL), sizes[i]);
        close(fd);
    }
    send_guest(&guests[1], 1, 2, port, 60, count_ranks);
    for (int rank = 0; rank < 2; rank++) {
        pthread_join(guests[rank].thread, NULL);
        assert_int_equal(guests[rank].status, OT_OK);
    }
}

static void who_does_not_meet_is_named(void **state)
{
    (void)state;
    guest guests[3];
    int holder;
    uint32_t port = some_port(NULL);
    send_guest(&guests[0], 0, 3, port, 0.5, count_ranks);
    send_guest(&guests[2], 2, 3, port, 1.5, count_ranks);
    for (int rank = 0; rank < 3; rank += 2) {
        pthread_join(guests[rank].thread, NULL);
        assert_int_equal(guests[rank].status, OT_ERR_DEVICE);
    }
    assert_int_equal(ot_error_raise(&guests[0].error), OT_ERR_DEVICE);
    says("rank 0 of 3, at localhost port");
    says("rank 1 has not come");
    assert_int_equal(ot_error_raise(&guests[2].error), OT_ERR_DEVICE);
    says("not all ranks have come to rank 0");
    port = some_port(&holder);
    send_guest(&guests[0], 0, 2, port, 0.5, count_ranks);
    pthread_join(guests[0].thread, NULL);
    close(holder);
    assert_int_equal(guests[0].status, OT_ERR_DEVICE);
    assert_int_equal(ot_error_raise(&guests[0].error), OT_ERR_DEVICE);
    says("cannot listen: Address already in use");
    send_guest_to("no-such-host.invalid", &guests[1], 1, 2, port, 0.5, count_ranks);
    pthread_join(guests[1].thread, NULL);
    assert_int_equal(ot_error_raise(&guests[1].error), OT_ERR_DEVICE);
    says("at no-such-host.invalid port");
    if (strstr(ot_error_text(), gai_strerror(EAI_NONAME)) == NULL)
        says(gai_strerror(EAI_AGAIN)); /* no name server here */
}

/* Rank 1 fails for a reason of its own, which the others learn whether they wait for it or not. */
static void go_with_a_word(ot_group *group, void *context)
{
    double number = 1;
    int who;
    (void)context;
    if (ot_group_rank(group) == 1) {
        ot_group_leave(group, OT_ERR_IO);
        return;
    }
    must(ot_group_left(group, &who) == 0 || who == 1);
    must(ot_group_sum(group, "numbers", &number, 1) == OT_ERR_DEVICE);
    must(ot_group_has_failed(group));
    must(ot_group_left(group, &who) == OT_ERR_IO && who == 1);
}

static void a_rank_that_fails_says_so(void **state)
{
    (void)state;
    guest guests[3];
    uint32_t port = some_port(NULL);
    for (int rank = 0; rank < 3; rank++)
        send_guest(&guests[rank], rank, 3, port, 60, go_with_a_word);
    for (int rank = 0; rank < 3; rank++)
        pthread_join(guests[rank].thread, NULL);
    ranks_run(3, 1, go_with_a_word, NULL);
}

/* Another operation than the others', and then no more. */
static void go_astray(ot_group *group, void *context)
{
    (void)context;
    double numbers[2] = {0};
    int rank = ot_group_rank(group);
    ot_status status = rank == 0 ? ot_group_sum(group, "numbers", numbers, 2)
                                 : ot_group_broadcast(group, "numbers", 1, numbers, sizeof numbers);
    if (rank > 0)
        return; /* what it sends may be on its way yet */
    must(status == OT_ERR_DEVICE);
    must(strstr(ot_error_text(), "the ranks do not do the same") != NULL);
}

static void ranks_that_differ_are_told(void **state)
{
    (void)state;
    guest guests[2];
    uint32_t port = some_port(NULL);
    for (int rank = 0; rank < 2; rank++)
        send_guest(&guests[rank], rank, 2, port, 60, go_astray);
    for (int rank = 0; rank < 2; rank++)
        pthread_join(guests[rank].thread, NULL);
}

typedef struct launch {
    const char *set[6]; /* NAME=VALUE */
    ot_world world;     /* that these mean */
} launch;

static void the_launcher_is_known(void **state)
{
    (void)state;
    static const launch launches[] = {
        {{NULL}, {0}},
        {{"OMPI_COMM_WORLD_SIZE=6", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "RANK=1", "WORLD_SIZE=9", "MASTER_ADDR=a",
          "MASTER_PORT=1"},
         {.size = 6, .here = 2}},
        {{"PMI_SIZE=3"}, {.size = 3, .here = 3}},
        {{"SLURM_STEP_NUM_TASKS=4"}, {.size = 4, .here = 4}},
        {{"SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=3", "MASTER_ADDR=a", "MASTER_PORT=29500",
          "SLURM_STEP_TASKS_PER_NODE=2(x2)"},
         {.size = 4, .here = 2, .host = "a", .port = 29500, .rank = 3}},
        {{"RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=29500"},
         {.size = 4, .here = 2, .host = "a", .port = 29500, .rank = 1}},
        {{"RANK=1", "WORLD_SIZE=4", "TORCHELASTIC_USE_AGENT_STORE=True", "MASTER_ADDR=a",
          "MASTER_PORT=29500"},
         {.size = 4, .here = 4, .host = "a", .port = 29501, .rank = 1}},
        {{"RANK=4", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=29500"}, {0}},
        {{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=70000"}, {0}},
        {{"RANK=1", "WORLD_SIZE=4x", "MASTER_ADDR=a", "MASTER_PORT=29500"}, {0}},
        {{"RANK=1", "WORLD_SIZE=4"}, {0}},
    };
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        ot_world found, expected = launches[i].world;
        clearenv();
        for (int s = 0; s < 6 && launches[i].set[s] != NULL; s++)
            assert_int_equal(putenv((char *)(uintptr_t)launches[i].set[s]), 0);
        ot_world_find(&found);
        if (found.size != expected.size || found.here != expected.here || found.port != expected.port ||
            found.rank != expected.rank || (found.host == NULL) != (expected.host == NULL))
            fail_msg("environment %zu: rank %d of %d, %d here, port %u", i, found.rank, found.size,
                     found.here, found.port);
        assert_int_equal(ot_group_launched(), expected.size);
        assert_int_equal(ot_group_launched_here(), expected.here);
    }
}

/* Under mpirun: this process is one rank. Its argument says how many there must be. */
static int run_launched(const char *size)
{
    const ot_group_options options = {.timeout_s = 60};
    ot_group *group;
    must(ot_group_open(&options, &group) == OT_OK);
    must(ot_group_size(group) == atoi(size));
    everything(group, NULL);
    if (ot_group_rank(group) == 0)
        printf("%s ranks: all operations are right\n", size);
    int who = 0, last = ot_group_size(group) - 1;
    if (ot_group_rank(group) == last)
        ot_group_leave(group, OT_ERR_IO);
    for (int tries = 0; ot_group_rank(group) < last && ot_group_left(group, &who) != OT_ERR_IO; tries++) {
        must(tries < 10000);
        usleep(1000);
    }
    must(ot_group_rank(group) == last || who == last);
    ot_group_close(group);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_do_what_they_say),
        cmocka_unit_test(a_damaged_way_is_named),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(giving_up_ends_what_waits),
        cmocka_unit_test(a_rank_that_fails_says_so),
        cmocka_unit_test(ranks_meet_by_tcp),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(who_does_not_meet_is_named),
        cmocka_unit_test(ranks_that_differ_are_told),
        cmocka_unit_test(the_launcher_is_known), /* the last: it empties the environment */
    };
    if (argc > 1)
        return run_launched(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
