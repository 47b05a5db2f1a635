/* Simulated times of small lists by closed forms, and of a 7-billion-parameter model's steps against the
 * bounds of any order of the same work. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "offload/simulate.h"
#include "tests/support/plan.h"
#include "tests/support/test.h"

/* ---- small lists ---- */

enum { OPERATIONS_MAX = 64 };

typedef struct tiny {
    ot_operation operations[OPERATIONS_MAX];
    uint32_t waits[2 * OPERATIONS_MAX];
    ot_list list;
} tiny;

/* Appends an operation of `bytes` that waits for up to two others, -1: none. Returns its number. */
static int add(tiny *t, ot_lane lane, uint64_t bytes, int first, int second)
{
    t->list.operations = t->operations;
    t->list.waits = t->waits;
    ot_operation *o = &t->operations[t->list.count];
    *o = (ot_operation){
        .lane = lane, .bytes = bytes, .flops = (double)bytes, .wait_first = (uint32_t)t->list.wait_count};
    for (int w = 0; w < 2; w++)
        if ((w == 0 ? first : second) >= 0) {
            t->waits[t->list.wait_count++] = (uint32_t)(w == 0 ? first : second);
            o->wait_count++;
        }
    return (int)t->list.count++;
}

/* Rates of 1, 2, 4, … bytes a second by lane. */
static ot_rates doubling_rates(void)
{
    ot_rates rates = {.nvme_half_duplex = 0};
    for (int lane = 0; lane < OT_LANES; lane++)
        rates.lane[lane] = (double)(1 << lane);
    return rates;
}

static ot_timeline simulate(const ot_list *list, const ot_rates *rates, double *ends)
{
    ot_timeline timeline;
    assert_int_equal(ot_simulate(list, rates, ends, &timeline), OT_OK);
    return timeline;
}

static void near(double found, double expected)
{
    if (fabs(found - expected) > 1e-9 * (1 + fabs(expected)))
        fail_msg("found %.9g, expected %.9g", found, expected);
}

static void an_empty_list_takes_no_time(void **state)
{
    (void)state;
    ot_list list = {0};
    ot_rates rates = doubling_rates();
    near(simulate(&list, &rates, NULL).seconds, 0);
}

static void a_lane_works_in_order(void **state)
{
    (void)state;
    static tiny t;
    memset(&t, 0, sizeof t);
    ot_rates rates = doubling_rates();
    rates.lane_latency_s[OT_LANE_H2D] = 0.25;
    for (int i = 0; i < 10; i++)
        add(&t, OT_LANE_H2D, 4, -1, -1);
    ot_timeline timeline = simulate(&t.list, &rates, NULL);
    near(timeline.seconds, 10 * (0.25 + 4.0 / 4));
    near(timeline.busy_s[OT_LANE_H2D], timeline.seconds);
    near(timeline.wait_s[OT_LANE_H2D], 0);
    assert_int_equal(timeline.bottleneck, OT_LANE_H2D);
    near(timeline.bound_s, timeline.seconds);
    rates.lane[OT_LANE_H2D] = 0;
    near(simulate(&t.list, &rates, NULL).seconds, 2.5);
}

/* Three stages of a pipeline: the sum of them for the first, then the slowest for each of the others. */
static void a_pipeline_runs_at_its_slowest_stage(void **state)
{
    (void)state;
    static tiny t;
    memset(&t, 0, sizeof t);
    ot_rates rates = doubling_rates();
    double ends[OPERATIONS_MAX];
    for (int i = 0; i < 8; i++) {
        int read = add(&t, OT_LANE_NVME_READ, 3, -1, -1); /* 3 s */
        int sent = add(&t, OT_LANE_H2D, 20, read, -1);    /* 5 s */
        add(&t, OT_LANE_COMPUTE, 32, sent, -1);           /* 2 s */
    }
    ot_timeline timeline = simulate(&t.list, &rates, ends);
    near(timeline.seconds, 3 + 5 + 2 + 7 * 5);
    near(ends[0], 3);
    near(ends[1], 8);
    near(ends[2], 10);
    near(ends[23], timeline.seconds);
    near(timeline.wait_s[OT_LANE_COMPUTE], 7 * 3);
    near(timeline.bound_s, 40);
    assert_int_equal(timeline.bottleneck, OT_LANE_H2D);
}

/* A first-in first-out lane does not let the second pass the first, though that is ready earlier. */
static void nothing_overtakes(void **state)
{
    (void)state;
    static tiny t;
    memset(&t, 0, sizeof t);
    ot_rates rates = doubling_rates();
    double ends[OPERATIONS_MAX];
    int slow = add(&t, OT_LANE_COMPUTE, 160, -1, -1); /* 10 s */
    add(&t, OT_LANE_D2H, 8, slow, -1);
    int behind = add(&t, OT_LANE_D2H, 8, -1, -1);
    add(&t, OT_LANE_CPU, 64, behind, slow);
    simulate(&t.list, &rates, ends);
    near(ends[1], 11);
    near(ends[2], 12);
    near(ends[3], 13);
}

/* Reads and writes of one drive: side by side if it is full-duplex, otherwise one after the other, whoever is
 * ready first. */
static void a_drive_takes_turns(void **state)
{
    (void)state;
    static tiny t;
    memset(&t, 0, sizeof t);
    ot_rates rates = doubling_rates();
    double ends[OPERATIONS_MAX];
    for (int i = 0; i < 6; i++) {
        int read = add(&t, OT_LANE_NVME_READ, 3, -1, -1); /* 3 s */
        int updated = add(&t, OT_LANE_CPU, 64, read, -1); /* 1 s */
        add(&t, OT_LANE_NVME_WRITE, 6, updated, -1);      /* 3 s */
    }
    near(simulate(&t.list, &rates, NULL).seconds, 6 * 3 + 1 + 3);
    rates.nvme_half_duplex = 1;
    ot_timeline timeline = simulate(&t.list, &rates, ends);
    near(timeline.nvme_busy_s, 36);
    near(timeline.bound_s, 36);
    assert_true(timeline.bottleneck == OT_LANE_NVME_READ || timeline.bottleneck == OT_LANE_NVME_WRITE);
    near(timeline.seconds, 36);
    near(ends[3], 6); /* the second read goes while the first update runs */
    near(ends[2], 9); /* and then the first write, which was ready before the third read could start */
}

/* ---- 7B on an RTX 4090 ---- */

static const struct machine {
    const char *name;
    double host_gb;
    int drives;
} machines[] = {{"128 GB, no drive", 128, 0}, {"64 GB, 1 drive", 64, 1}, {"64 GB, 2 drives", 64, 2}};

static const size_t tokens[] = {4096, 16384, 65536};

/* What the work itself takes, from the model and the places alone. */
typedef struct bounds {
    double forward_s, backward_s; /* compute */
    double update_s;              /* the slower of CPU lane and drives */
    double device_s;              /* updates on the compute lane */
    double pcie_s;                /* the busier direction */
} bounds;

static bounds bounds_of(const model *m, const ot_plan *plan)
{
    const ot_plan_request *r = &m->request;
    bounds b = {0};
    double M = (double)r->micro_batches, params = 0, stored = 0, device = 0;
    for (size_t s = 0; s < r->stage_count; s++) {
        b.forward_s +=
            s + 1 < r->stage_count ? M * r->stages[s].forward_flops / r->rates.lane[OT_LANE_COMPUTE] : 0;
        b.backward_s += M * r->stages[s].backward_flops / r->rates.lane[OT_LANE_COMPUTE];
    }
    for (size_t l = 0; l < r->layer_count; l++)
        params += (double)r->layers[l].params;
    for (int p = 0; p <= OT_PLANE_MOMENT2; p++)
        stored += (double)plan->plane_bytes[OT_TIER_NVME][p];
    for (size_t p = 0; p < plan->place_count; p++)
        if (plan->places[p].tier == OT_TIER_DEVICE && plan->places[p].plane == OT_PLANE_MASTER)
            device += (double)plan->places[p].bytes / 2;
    /* An update reads a gradient of 2 bytes and reads and writes 2 + 2 + 4 + 4. */
    double cpu = 26 * (params - device) / r->rates.lane[OT_LANE_CPU], drives = 0;
    b.device_s = 26 * device / r->rates.device_memory;
    if (stored > 0)
        drives = stored / r->rates.lane[OT_LANE_NVME_READ] + stored / r->rates.lane[OT_LANE_NVME_WRITE];
    b.update_s = cpu > drives ? cpu : drives;
    b.pcie_s = 2 * (params - device) / r->rates.lane[OT_LANE_H2D];
    return b;
}

static double largest(double a, double b)
{
    return a > b ? a : b;
}

/* Calls for every machine and number of tokens; the step may take 10 % longer than `bound`. */
static void check_steps(int update_in_backward, double (*bound)(const bounds *))
{
    static model m;
    for (size_t k = 0; k < sizeof machines / sizeof *machines; k++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            ot_plan *plan;
            model_7b(&m, tokens[t]);
            machine_4090(&m, machines[k].host_gb, machines[k].drives);
            m.request.update_in_backward = update_in_backward;
            if (ot_plan_make(&m.request, &plan) != OT_OK)
                fail_msg("%s: %s", machines[k].name, ot_error_text());
            ot_timeline timeline = simulate(&plan->lists[OT_LIST_STEADY], &m.request.rates, NULL);
            bounds b = bounds_of(&m, plan);
            double least = bound(&b);
            print_message("%-16s %5zu tokens: %5.2f s, bound %5.2f s: %+5.1f %%, %5.0f tok/s, %s\n",
                          machines[k].name, tokens[t], timeline.seconds, least,
                          100 * (timeline.seconds / least - 1), (double)tokens[t] / timeline.seconds,
                          ot_lane_name(timeline.bottleneck));
            assert_true(timeline.seconds >= least * 0.999);
            assert_true(timeline.seconds <= least * 1.10);
            near(plan->predicted_s, timeline.seconds);
            ot_plan_free(plan);
        }
}

/* No lane can do its work in less. */
static double largest_lane(const bounds *b)
{
    return largest(largest(b->forward_s + b->backward_s + b->device_s, b->update_s), b->pcie_s);
}

/* No update starts before backward has ended, so the updates of a step lie between two backward passes; and
 * they end before the next backward, since forward needs each of them. Forward may run beside them, and no
 * sooner ends backward than its own work takes. */
static double exact_clipping(const bounds *b)
{
    return largest(largest(b->forward_s + b->device_s, b->update_s) + b->backward_s, b->pcie_s);
}

static void updates_inside_backward_reach_the_largest_lane(void **state)
{
    (void)state;
    check_steps(1, largest_lane);
}

static void exact_clipping_reaches_the_best_order(void **state)
{
    (void)state;
    check_steps(0, exact_clipping);
}

/* An eighth of the parameters, and of the work. */
static void shrink(model *m)
{
    for (size_t l = 0; l < m->request.layer_count; l++)
        m->layers[l].params /= 8;
    for (size_t s = 0; s < m->request.stage_count; s++) {
        m->stages[s].forward_flops /= 8;
        m->stages[s].backward_flops /= 8;
    }
}

/* 0.84 billion parameters on 24 GB: all states on the device by the plan's own choice. Nothing of the model crosses, a step is the
 * compute lane's work, and states on the host take longer. */
static void a_small_model_stays_on_the_device(void **state)
{
    (void)state;
    static model m;
    for (int in_backward = 0; in_backward < 2; in_backward++) {
        ot_plan *plan, *host;
        model_7b(&m, 4096);
        shrink(&m);
        machine_4090(&m, 64, 1);
        m.request.update_in_backward = in_backward;
        assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
        const ot_list *step = &plan->lists[in_backward ? OT_LIST_FIRST : OT_LIST_STEADY];
        double params = 0, sums = 0, compute = step->flops / m.request.rates.lane[OT_LANE_COMPUTE];
        for (size_t l = 0; l < m.request.layer_count; l++) {
            params += (double)m.layers[l].params;
            sums += (double)ot_sum_blocks(m.layers[l].params) * sizeof(double);
        }
        assert_int_equal(plan->device_chunks, plan->chunk_count);
        assert_int_equal(step->lane_bytes[OT_LANE_H2D], m.request.data_bytes);
        assert_int_equal(step->lane_bytes[OT_LANE_D2H], sums);
        assert_int_equal(step->lane_bytes[OT_LANE_CPU] + step->lane_bytes[OT_LANE_NVME_READ] +
                             step->lane_bytes[OT_LANE_NVME_WRITE],
                         0);
        double least = compute + 26 * params / m.request.rates.device_memory;
        assert_true(plan->predicted_s >= least * 0.999 && plan->predicted_s < least * 1.01);
        m.request.states = (ot_placement){.tier = OT_TIER_HOST, .share = 1};
        assert_int_equal(ot_plan_make(&m.request, &host), OT_OK);
        print_message("0.84 B parameters, states on the device %.3f s, on the host %.3f s\n",
                      plan->predicted_s, host->predicted_s);
        assert_true(host->predicted_s > 1.3 * plan->predicted_s);
        assert_int_equal(host->device_chunks, 0);
        ot_plan_free(host);
        ot_plan_free(plan);
    }
}

/* The same model, of which one plane is placed by hand: it is where it was placed, and states, which would take it along,
 * leave it there. */
static void what_is_placed_by_hand_stays_there(void **state)
{
    (void)state;
    static model m;
    static const struct {
        int grads;
        ot_placement placement;
        int goes_along;
    } cases[] = {
        {0, {0, OT_TIER_HOST, 1}, 0},   {0, {0, OT_TIER_NVME, 1}, 0}, {0, {0, OT_TIER_DEVICE, 0.25}, 0},
        {0, {0, OT_TIER_DEVICE, 1}, 1}, {1, {0, OT_TIER_HOST, 1}, 0}, {1, {0, OT_TIER_NVME, 1}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ot_plan *plan;
        model_7b(&m, 4096);
        shrink(&m);
        machine_4090(&m, 64, 1);
        const ot_placement p = cases[i].placement;
        *(cases[i].grads ? &m.request.grads : &m.request.weights) = p;
        assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
        assert_int_equal(plan->device_chunks, cases[i].goes_along ? plan->chunk_count : 0);
        size_t resident = 0;
        for (size_t l = 0; l < m.request.layer_count; l++)
            resident += plan->resident[l] >= 0;
        if (!cases[i].grads)
            assert_int_equal(resident, p.tier != OT_TIER_DEVICE
                                           ? 0
                                           : (size_t)(p.share * (double)m.request.layer_count + 0.5));
        const ot_plane plane = cases[i].grads ? OT_PLANE_GRAD : OT_PLANE_WEIGHT;
        for (size_t c = 0; c < plan->chunk_count && p.tier != OT_TIER_DEVICE; c++)
            assert_int_equal(plan->places[plan->chunks[c].home[plane]].tier, p.tier);
        ot_plan_free(plan);
    }
}

/* Everything on NVMe and streamed: the step is the drive's time, and a little. */
static void everything_on_nvme_runs_at_the_drives_speed(void **state)
{
    (void)state;
    static model m;
    ot_plan *plan;
    model_7b(&m, 4096);
    machine_4090(&m, 64, 1);
    ot_placement nvme = {.tier = OT_TIER_NVME, .share = 1};
    m.request.weights = m.request.states = m.request.grads = m.request.acts = nvme;
    assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
    ot_timeline timeline = simulate(&plan->lists[OT_LIST_STEADY], &m.request.rates, NULL);
    print_message("all planes on NVMe: %.2f s, drive %.2f s, host %.2f GB, device %.2f GB\n",
                  timeline.seconds, timeline.nvme_busy_s, (double)plan->peak_bytes[OT_TIER_HOST] / 1e9,
                  (double)plan->peak_bytes[OT_TIER_DEVICE] / 1e9);
    assert_true(timeline.seconds <= 1.1 * timeline.nvme_busy_s);
    ot_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_list_takes_no_time),
        cmocka_unit_test(a_lane_works_in_order),
        cmocka_unit_test(a_pipeline_runs_at_its_slowest_stage),
        cmocka_unit_test(nothing_overtakes),
        cmocka_unit_test(a_drive_takes_turns),
        cmocka_unit_test(updates_inside_backward_reach_the_largest_lane),
        cmocka_unit_test(exact_clipping_reaches_the_best_order),
        cmocka_unit_test(a_small_model_stays_on_the_device),
        cmocka_unit_test(what_is_placed_by_hand_stays_there),
        cmocka_unit_test(everything_on_nvme_runs_at_the_drives_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
