/* Plans of thousands of random models, checked by what their lists do; what does not fit; traffic by closed
 * forms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/host.h"
#include "offload/simulate.h"
#include "tests/support/plan.h"
#include "tests/support/test.h"

enum { RANDOM_MODELS = 2000 };

static void check_all(const ot_plan_request *request, const ot_plan *plan, uint64_t seed)
{
    check_places(request, plan);
    for (int kind = 0; kind < OT_LISTS; kind++)
        check_order(plan, (ot_list_kind)kind);
    check_life(request, plan, seed);
}

/* ---- random models ---- */

static void every_plan_keeps_the_invariants(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < RANDOM_MODELS; seed++) {
        ot_plan *plan;
        model_random(&m, seed);
        if (ot_plan_make(&m.request, &plan) != OT_OK)
            fail_msg("seed %d: %s", (int)seed, ot_error_text());
        check_all(&m.request, plan, seed);
        ot_plan_free(plan);
    }
}

/* Budgets between nothing and what an unlimited plan takes. */
static void tight_budgets_are_kept_or_refused(void **state)
{
    (void)state;
    static model m;
    size_t fit = 0, nvme_used = 0;
    for (uint64_t seed = 0; seed < RANDOM_MODELS; seed++) {
        ot_plan *plan;
        uint64_t draws = seed + 1000000, least[OT_TIERS] = {0};
        model_random(&m, seed);
        assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
        for (int tier = 0; tier < OT_TIERS; tier++)
            least[tier] = plan->peak_bytes[tier];
        ot_plan_free(plan);
        if (draw(&draws, 4))
            m.request.weights.automatic = m.request.states.automatic = m.request.acts.automatic = 1;
        m.request.budget[OT_TIER_DEVICE] = least[OT_TIER_DEVICE] * (50 + draw(&draws, 60)) / 100;
        m.request.budget[OT_TIER_HOST] = least[OT_TIER_HOST] * (40 + draw(&draws, 70)) / 100;
        if (draw(&draws, 4) == 0)
            m.request.budget[OT_TIER_NVME] = draw(&draws, 2) * least[OT_TIER_HOST] * draw(&draws, 101) / 100;
        ot_status by_bytes = ot_plan_fits(&m.request);
        if (ot_plan_make(&m.request, &plan) != OT_OK) {
            assert_non_null(strstr(ot_error_text(), "too little"));
            assert_int_equal(by_bytes, OT_ERR_FIT);
            continue;
        }
        assert_int_equal(by_bytes, OT_OK);
        fit++;
        nvme_used += plan->nvme_chunk_count > 0;
        check_all(&m.request, plan, seed);
        ot_plan_free(plan);
    }
    print_message("%zu of %d fit, %zu with the help of NVMe\n", fit, RANDOM_MODELS, nvme_used);
    assert_true(fit > RANDOM_MODELS / 6 && fit < RANDOM_MODELS && nvme_used > RANDOM_MODELS / 8);
}

/* ---- inference ---- */

static uint64_t padded(uint64_t bytes)
{
    return ot_round_up(bytes, OT_PAGE_BYTES);
}

/* What exists is counted by hand: homes of weights, and on the device weights, boundaries, data and workspace. */
static void check_inference(const ot_plan_request *r, const ot_plan *plan)
{
    uint64_t homes = 0, weights = 0, boundary = padded(r->boundary_bytes);
    for (size_t c = 0; c < plan->chunk_count; c++) {
        homes += padded(plan->chunks[c].count * ot_dtype_bytes(r->weight_dtype));
        for (int p = OT_PLANE_MASTER; p <= OT_PLANE_GRAD; p++)
            assert_int_equal(plan->chunks[c].home[p], -1);
    }
    for (size_t l = 0; l < r->layer_count; l++)
        weights += padded(r->layers[l].params * ot_dtype_bytes(r->weight_dtype));
    assert_int_equal(plan->plane_bytes[OT_TIER_HOST][OT_PLANE_WEIGHT] +
                         plan->plane_bytes[OT_TIER_NVME][OT_PLANE_WEIGHT],
                     homes);
    assert_int_equal(plan->peak_bytes[OT_TIER_NVME], plan->plane_bytes[OT_TIER_NVME][OT_PLANE_WEIGHT]);
    uint64_t fixed = padded(r->data_bytes) + padded(r->workspace_bytes) + r->device_fixed_bytes +
                     (r->micro_batches + 1) * boundary;
    assert_true(plan->peak_bytes[OT_TIER_DEVICE] <= fixed + weights);
    if (r->weights.automatic)
        assert_int_equal(plan->peak_bytes[OT_TIER_DEVICE], fixed + weights);
    assert_int_equal(plan->deferred_chunks, 0);
    const ot_list_kind empty[] = {OT_LIST_FIRST, OT_LIST_STEADY, OT_LIST_DRAIN};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(plan->lists[empty[i]].count, 0);
    assert_int_equal(plan->lists[OT_LIST_EVAL].lane_bytes[OT_LANE_D2H], 0);
    assert_int_equal(plan->lists[OT_LIST_EVAL].lane_bytes[OT_LANE_NVME_WRITE], 0);
}

static void inference_holds_weights_alone(void **state)
{
    (void)state;
    static model m;
    size_t streamed = 0;
    for (uint64_t seed = 0; seed < RANDOM_MODELS; seed++) {
        ot_plan *plan;
        model_random(&m, seed);
        m.request.inference = 1;
        m.request.update_in_backward = 0;
        if (ot_plan_make(&m.request, &plan) != OT_OK)
            fail_msg("seed %d: %s", (int)seed, ot_error_text());
        check_all(&m.request, plan, seed);
        check_inference(&m.request, plan);
        assert_true(plan->predicted_s > 0);
        memcpy(m.request.budget, plan->peak_bytes, sizeof m.request.budget);
        assert_int_equal(ot_plan_fits(&m.request), OT_OK); /* what is needed is enough */
        m.request.budget[OT_TIER_DEVICE] = plan->peak_bytes[OT_TIER_DEVICE] * (50 + seed % 50) / 100;
        ot_plan_free(plan);
        if (ot_plan_make(&m.request, &plan) != OT_OK) {
            assert_non_null(strstr(ot_error_text(), "device needs"));
            continue;
        }
        streamed++;
        check_all(&m.request, plan, seed);
        ot_plan_free(plan);
    }
    print_message("%zu of %d fit with less device memory\n", streamed, RANDOM_MODELS);
    assert_true(streamed > RANDOM_MODELS / 10);
}

/* An outline is weighed in place of its plan: with many micro-batches, too, it predicts what the whole list takes. */
static void an_outline_predicts_its_plan(void **state)
{
    (void)state;
    static const size_t micro_batches[] = {1, 16, 64, 65, 300, 2000};
    static model m;
    for (size_t k = 0; k < sizeof micro_batches / sizeof *micro_batches; k++)
        for (int host_gb = 64; host_gb <= 4096; host_gb *= 8) {
            ot_plan *outline, *plan;
            ot_timeline timeline;
            model_7b(&m, 2048 * micro_batches[k]);
            machine_4090(&m, host_gb, 1);
            m.request.budget[OT_TIER_DEVICE] += m.request.boundary_bytes * micro_batches[k];
            m.request.update_in_backward = k % 2;
            assert_int_equal(ot_plan_outline(&m.request, &outline), OT_OK);
            assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
            assert_int_equal(ot_simulate(&plan->lists[OT_LIST_STEADY], &m.request.rates, NULL, &timeline),
                             OT_OK);
            assert_true(plan->predicted_s == timeline.seconds);
            if (fabs(outline->predicted_s / plan->predicted_s - 1) > 0.02)
                fail_msg("%zu micro-batches, %d GB: %g s, expected %g s", micro_batches[k], host_gb,
                         outline->predicted_s, plan->predicted_s);
            assert_int_equal(outline->lists[OT_LIST_STEADY].count, 0);
            assert_int_equal(outline->place_count, plan->place_count);
            for (size_t p = 0; p < plan->place_count; p++) {
                assert_int_equal(outline->places[p].tier, plan->places[p].tier);
                assert_int_equal(outline->places[p].offset, plan->places[p].offset);
            }
            ot_plan_free(outline);
            ot_plan_free(plan);
        }
}

static int same_work(const ot_operation *a, const ot_operation *b)
{
    return a->kind == b->kind && a->stage == b->stage && a->layer == b->layer && a->chunk == b->chunk &&
           a->micro_batch == b->micro_batch && a->bytes == b->bytes && a->deferred == b->deferred &&
           a->pass == b->pass;
}

/* ---- several ranks ---- */

static void draw_ranks(ot_plan_request *request, uint64_t seed)
{
    request->ranks = 2 + (int)(seed % 4);
    request->rank = (int)(seed / 4 % (uint64_t)request->ranks);
    request->zero = 1 + (int)(seed / 20 % 3);
    request->measured &= request->zero == 1;
}

static void every_rank_keeps_the_invariants(void **state)
{
    (void)state;
    static model m;
    size_t streamed = 0, gathers = 0;
    for (uint64_t seed = 0; seed < RANDOM_MODELS; seed++) {
        ot_plan *plan;
        model_random(&m, seed);
        draw_ranks(&m.request, seed);
        m.request.inference = seed % 7 == 6;
        m.request.update_in_backward &= !m.request.inference;
        if (ot_plan_make(&m.request, &plan) != OT_OK)
            fail_msg("seed %d: %s", (int)seed, ot_error_text());
        check_all(&m.request, plan, seed);
        m.request.budget[OT_TIER_DEVICE] = plan->peak_bytes[OT_TIER_DEVICE] * (50 + seed % 50) / 100;
        ot_plan_free(plan);
        if (ot_plan_make(&m.request, &plan) != OT_OK)
            continue;
        streamed++;
        check_all(&m.request, plan, seed);
        for (size_t o = 0; o < plan->lists[OT_LIST_STEADY].count; o++)
            gathers += plan->lists[OT_LIST_STEADY].operations[o].kind == OT_OP_GATHER;
        ot_plan_free(plan);
    }
    print_message("%zu of %d fit with less device memory, %zu gatherings\n", streamed, RANDOM_MODELS,
                  gathers);
    assert_true(streamed > RANDOM_MODELS / 10 && gathers > streamed);
}

/* The operations of a lane, one after the other; all lanes where it is negative. */
static size_t next_of(const ot_list *list, int lane, size_t o)
{
    while (o < list->count && lane >= 0 && list->operations[o].lane != (ot_lane)lane)
        o++;
    return o;
}

static void expect_lists_alike(const ot_list *p, const ot_list *q, int lane)
{
    size_t o = next_of(p, lane, 0), i = next_of(q, lane, 0);
    assert_int_equal(p->count, q->count);
    assert_memory_equal(p->lane_bytes, q->lane_bytes, sizeof p->lane_bytes);
    for (; o < p->count && i < q->count; o = next_of(p, lane, o + 1), i = next_of(q, lane, i + 1)) {
        ot_operation x = p->operations[o], y = q->operations[i];
        assert_memory_equal(x.places, y.places, sizeof x.places);
        assert_true(x.kind == y.kind && x.layer == y.layer && x.chunk == y.chunk && x.bytes == y.bytes &&
                    x.stage == y.stage && x.micro_batch == y.micro_batch);
        assert_true(lane >= 0 || (x.wait_first == y.wait_first && x.wait_count == y.wait_count));
    }
    assert_true(o == p->count && i == q->count);
    if (lane >= 0)
        return;
    assert_int_equal(p->wait_count, q->wait_count);
    assert_memory_equal(p->waits, q->waits, p->wait_count * sizeof *p->waits);
}

/* But for where the shards begin: so collective operations meet, and in one order. Passes over a whole gradient are in order
 * of its elements, and so of ranks. */
static void expect_alike(const ot_plan *a, const ot_plan *b, int measured)
{
    assert_int_equal(a->place_count, b->place_count);
    for (size_t p = 0; p < a->place_count; p++) {
        const ot_place *x = &a->places[p], *y = &b->places[p];
        assert_true(x->tier == y->tier && x->plane == y->plane && x->offset == y->offset &&
                    x->bytes == y->bytes && x->chunk == y->chunk);
    }
    for (int kind = 0; kind < OT_LISTS; kind++)
        expect_lists_alike(&a->lists[kind], &b->lists[kind], measured ? OT_LANE_COLLECTIVE : -1);
}

static void all_ranks_have_one_plan(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < 300; seed++) {
        ot_plan *first, *other;
        model_random(&m, seed);
        draw_ranks(&m.request, seed);
        m.request.rank = 0;
        assert_int_equal(ot_plan_make(&m.request, &first), OT_OK);
        for (m.request.rank = 1; m.request.rank < m.request.ranks; m.request.rank++) {
            assert_int_equal(ot_plan_make(&m.request, &other), OT_OK);
            expect_alike(first, other, m.request.measured);
            ot_plan_free(other);
        }
        ot_plan_free(first);
    }
}

/* Bytes of the steady step. */
typedef struct traffic {
    double scattered, gathered, sent, kept;
} traffic;

static traffic traffic_of(const ot_plan *plan)
{
    const ot_list *steady = &plan->lists[OT_LIST_STEADY];
    traffic t = {0};
    for (size_t o = 0; o < steady->count; o++) {
        const ot_operation *op = &steady->operations[o];
        int grads = op->places[1] >= 0 && plan->places[op->places[1]].plane == OT_PLANE_GRAD;
        t.scattered += op->kind == OT_OP_SCATTER ? (double)op->bytes : 0;
        t.gathered += op->kind == OT_OP_GATHER ? (double)op->bytes : 0;
        t.sent += op->kind == OT_OP_H2D && op->chunk >= 0 ? (double)op->bytes : 0;
        t.kept += op->kind == OT_OP_D2H && op->chunk >= 0 && !grads ? (double)op->bytes : 0;
    }
    assert_int_equal(steady->lane_bytes[OT_LANE_COLLECTIVE], (uint64_t)(t.scattered + t.gathered));
    return t;
}

static void expect_about(double found, double expected)
{
    if (!(fabs(found - expected) <= 0.005 * expected)) /* padding */
        fail_msg("found %.6g, expected %.6g", found, expected);
}

/* Model states of a rank by stage, with P parameters and K bytes of optimizer states each (Rajbhandari et al. 2020, figure 1):
 * 2P + 2P + KP/N, 2P + (2+K)P/N, (4+K)P/N; and what crosses between the ranks in a step: gradients once, in FP32, and weights
 * twice with the last stage (but for the head, and what stays on the device in between), otherwise once. */
static void ranks_share_the_states(void **state)
{
    (void)state;
    static model m;
    for (int run = 0; run < 2 * 3 * 4; run++) {
        int zero = 1 + run % 3, ranks = 1 << run / 3 % 4, split = run / 12;
        ot_plan *plan;
        model_7b(&m, 8192);
        machine_4090(&m, 1000, 0);
        m.request.ranks = ranks;
        m.request.zero = zero;
        m.request.weights = m.request.states = (ot_placement){.tier = OT_TIER_HOST, .share = 1};
        if (!split) {
            m.request.weight_dtype = m.request.grad_dtype = OT_FP16;
            m.request.master_format = OT_MASTER_FP32;
        }
        assert_int_equal(ot_plan_make(&m.request, &plan), OT_OK);
        double P = 0, held = 0, n = ranks, K = split ? 10 : 12;
        for (size_t l = 0; l < m.request.layer_count; l++)
            P += (double)m.request.layers[l].params;
        for (int plane = 0; plane <= OT_PLANE_GRAD; plane++)
            held += (double)plan->plane_bytes[OT_TIER_HOST][plane];
        const double expected[] = {2 * P + 2 * P + K * P / n, 2 * P + (2 + K) * P / n, (4 + K) * P / n};
        expect_about(held, expected[zero - 1]);
        assert_int_equal(plan->zero, zero);
        expect_about((double)plan->state_bytes[zero], expected[zero - 1]);
        traffic t = traffic_of(plan);
        expect_about(t.scattered, 4 * P * (n - 1) / n);
        double others = (n - 1) / n, grads = zero == 1 ? 2 * P * others : 0;
        if (zero == 3) {
            expect_about(t.gathered, t.sent * (n - 1));
            assert_true(t.sent * n > 2 * P && t.sent * n < 4 * P);
        } else {
            expect_about(t.gathered, 2 * P * others + grads);
            expect_about(t.kept, 2 * P * others);
            assert_true(t.sent > (ranks > 1 ? P : 2 * P) && t.sent <= 4 * P);
        }
        ot_plan_free(plan);
    }
}

/* With the same choices the serial reference does the same, one after the other. */
static void serial_lists_are_the_same(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < 300; seed++) {
        ot_plan *plans[2];
        model_random(&m, seed);
        m.request.prefetch_depth = 1 + (int)(seed % 3);
        m.request.weights.share = 1;
        m.request.update_in_backward = 0;
        if (m.request.states.automatic)
            m.request.states = (ot_placement){.tier = OT_TIER_HOST, .share = 1};
        for (int overlap = 0; overlap < 2; overlap++) {
            m.request.overlap = overlap;
            assert_int_equal(ot_plan_make(&m.request, &plans[overlap]), OT_OK);
        }
        for (int kind = 0; kind < OT_LISTS; kind++) {
            const ot_list *serial = &plans[0]->lists[kind], *list = &plans[1]->lists[kind];
            assert_int_equal(serial->count, list->count);
            for (size_t o = 0; o < list->count; o++) {
                assert_true(same_work(&serial->operations[o], &list->operations[o]));
                assert_int_equal(serial->operations[o].wait_count, o > 0);
                assert_true(o == 0 || serial->waits[serial->operations[o].wait_first] == o - 1);
            }
        }
        ot_plan_free(plans[0]);
        ot_plan_free(plans[1]);
    }
}

/* ---- traffic ---- */

static uint64_t layer_planes(const ot_plan_request *request, const ot_plan *plan, size_t c, int from, int to)
{
    uint64_t bytes = 0;
    for (int p = from; p <= to; p++)
        bytes += ot_plane_bytes(request, (ot_plane)p, plan->chunks[c].count);
    return bytes;
}

/* Everything on NVMe, nothing kept on the device: what one step moves, counted by hand. */
static void traffic_adds_up(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < 300; seed++) {
        ot_plan *plan;
        model_random(&m, seed);
        ot_plan_request *r = &m.request;
        ot_placement nvme = {.tier = OT_TIER_NVME, .share = 1};
        r->weights = r->states = r->grads = r->acts = nvme;
        r->update_in_backward = 0;
        r->measured = seed % 2 == 1;
        r->prefetch_depth = 1;
        assert_int_equal(ot_plan_make(r, &plan), OT_OK);
        const ot_list *steady = &plan->lists[OT_LIST_STEADY];
        uint64_t weights = 0, states = 0, grads = 0, sums = 0, acts = 0, again = 0;
        int weight_read = r->weight_dtype == OT_FP32 || r->master_format == OT_MASTER_SPLIT;
        for (size_t c = 0; c < plan->chunk_count; c++) {
            weights += layer_planes(r, plan, c, OT_PLANE_WEIGHT, OT_PLANE_WEIGHT);
            states += layer_planes(r, plan, c, OT_PLANE_MASTER, OT_PLANE_MOMENT2);
            grads += layer_planes(r, plan, c, OT_PLANE_GRAD, OT_PLANE_GRAD);
        }
        for (size_t l = 0; l < r->layer_count; l++)
            sums += (r->layers[l].params + OT_SUM_BLOCK - 1) / OT_SUM_BLOCK * 8;
        acts = (r->stage_count - 2) * r->micro_batches * r->boundary_bytes;
        /* Fetched again for backward: all but the head's layers and those of the stage before it, which is
         * still in its slot. A tied embedding is fetched for the head as well, unless the one block does not
         * push it out. */
        size_t S = r->stage_count;
        int tied = r->stages[S - 1].layers[1] == 0;
        for (size_t s = tied && S == 3; s + 2 < S; s++)
            again += r->layers[r->stages[s].layers[0]].params * ot_dtype_bytes(r->weight_dtype);
        if (tied && S > 3)
            again += r->layers[0].params * ot_dtype_bytes(r->weight_dtype);
        assert_int_equal(steady->lane_bytes[OT_LANE_H2D], r->data_bytes + weights + again + acts);
        assert_int_equal(steady->lane_bytes[OT_LANE_D2H], grads + sums + acts);
        assert_int_equal(steady->lane_bytes[OT_LANE_NVME_WRITE], weights + states + grads + acts);
        uint64_t passes = r->measured ? 3 : 1; /* over the gradients */
        assert_int_equal(steady->lane_bytes[OT_LANE_NVME_READ],
                         (weight_read ? weights : 0) + states + passes * grads + again + acts);
        assert_int_equal(steady->lane_bytes[OT_LANE_CPU],
                         (weight_read ? 2 : 1) * weights + 2 * states + passes * grads);
        double flops = 0;
        for (size_t s = 0; s < S; s++)
            flops += (s + 1 < S ? r->stages[s].forward_flops : 0) + r->stages[s].backward_flops;
        assert_true(steady->flops > 0.999999 * flops * (double)r->micro_batches &&
                    steady->flops < 1.000001 * flops * (double)r->micro_batches);
        ot_plan_free(plan);
    }
}

/* ---- placements ---- */

static ot_plan *make(const model *m)
{
    ot_plan *plan;
    if (ot_plan_make(&m->request, &plan) != OT_OK)
        fail_msg("%s", ot_error_text());
    return plan;
}

/* What is kept takes its room on the device, one for each stage between the ends and each micro-batch, and nothing else. */
static void what_is_kept_is_on_the_device(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint64_t device[2], others[2];
        model_random(&m, seed);
        for (int kept = 0; kept < 2; kept++) {
            m.request.kept_bytes = kept ? 5000 : 0;
            ot_plan *plan = make(&m);
            device[kept] = plan->peak_bytes[OT_TIER_DEVICE];
            others[kept] = plan->peak_bytes[OT_TIER_HOST] + plan->peak_bytes[OT_TIER_NVME];
            ot_plan_free(plan);
        }
        assert_int_equal(device[1] - device[0], (m.request.stage_count - 2) * m.request.micro_batches * 8192);
        assert_int_equal(others[1], others[0]);
    }
}

static void nvme_takes_less_host_memory(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint64_t host[2], chunks = 0;
        model_random(&m, seed);
        m.request.ring = 8;
        m.request.moments = 2;
        m.request.update_in_backward = 0;
        for (int nvme = 0; nvme < 2; nvme++) {
            m.request.states = (ot_placement){.tier = nvme ? OT_TIER_NVME : OT_TIER_HOST, .share = 1};
            ot_plan *plan = make(&m);
            host[nvme] = plan->peak_bytes[OT_TIER_HOST];
            chunks = plan->chunk_count;
            ot_plan_free(plan);
        }
        if (host[1] > host[0] || (host[1] == host[0] && chunks > 16))
            fail_msg("seed %d: %d chunks, host %llu with nvme, %llu without", (int)seed, (int)chunks,
                     (unsigned long long)host[1], (unsigned long long)host[0]);
    }
}

static void a_share_is_kept(void **state)
{
    (void)state;
    static model m;
    model_7b(&m, 4096);
    for (int percent = 0; percent <= 100; percent += 10) {
        m.request.states = (ot_placement){.tier = OT_TIER_HOST, .share = percent / 100.0};
        ot_plan *plan = make(&m);
        double host = (double)plan->plane_bytes[OT_TIER_HOST][OT_PLANE_MOMENT1];
        double nvme = (double)plan->plane_bytes[OT_TIER_NVME][OT_PLANE_MOMENT1];
        assert_true(host / (host + nvme) > percent / 100.0 - 0.01 &&
                    host / (host + nvme) < percent / 100.0 + 0.01);
        /* Spread evenly: in any run of 50 chunks about as many as anywhere else. */
        for (size_t c = 0; c + 50 < plan->chunk_count; c++) {
            int on_host = 0;
            for (size_t i = c; i < c + 50; i++)
                on_host += plan->places[plan->chunks[i].home[OT_PLANE_MOMENT1]].tier == OT_TIER_HOST;
            assert_true(abs(on_host - percent / 2) <= 1);
        }
        ot_plan_free(plan);
    }
}

/* Weights first on the device, then states in host memory, and no more on NVMe than must be. */
static void memory_is_used_up(void **state)
{
    (void)state;
    static model m;
    model_7b(&m, 4096);
    machine_4090(&m, 64, 1);
    ot_plan *plan = make(&m);
    for (size_t l = 0; l < m.request.layer_count; l++)
        assert_true(plan->resident[l] >= 0);
    uint64_t group = 12 * plan->chunk_params;
    assert_true(plan->peak_bytes[OT_TIER_HOST] + 2 * group > m.request.budget[OT_TIER_HOST]);
    ot_plan_free(plan);
}

/* ---- refusals ---- */

static void what_does_not_fit_is_told(void **state)
{
    (void)state;
    static model m;
    ot_plan *plan;
    model_7b(&m, 4096);
    machine_4090(&m, 128, 0);
    m.request.budget[OT_TIER_DEVICE] = (uint64_t)3 << 30;
    assert_int_equal(ot_plan_make(&m.request, &plan), OT_ERR_FIT);
    assert_null(plan);
    assert_non_null(strstr(ot_error_text(), "device needs "));
    assert_non_null(strstr(ot_error_text(), "has 3 GiB, too little"));
    machine_4090(&m, 24, 0);
    assert_int_equal(ot_plan_make(&m.request, &plan), OT_ERR_FIT);
    assert_non_null(strstr(ot_error_text(), "host needs "));
    assert_non_null(strstr(ot_error_text(), "too little (most of it: moment1); nvme needs 0 B"));
    machine_4090(&m, 24, 1);
    m.request.budget[OT_TIER_NVME] = (uint64_t)10 << 30;
    assert_int_equal(ot_plan_make(&m.request, &plan), OT_ERR_FIT);
    assert_non_null(strstr(ot_error_text(), "nvme needs "));
    assert_non_null(strstr(ot_error_text(), "has 10 GiB, too little"));
}

/* With the most that was asked for as the budget the same plan still fits. */
static void need_is_enough(void **state)
{
    (void)state;
    static model m;
    for (uint64_t seed = 0; seed < 500; seed++) {
        model_random(&m, seed);
        ot_plan *plan = make(&m);
        memcpy(m.request.budget, plan->peak_bytes, sizeof m.request.budget);
        ot_plan_free(plan);
        plan = make(&m);
        ot_plan_free(plan);
    }
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    static model m;
    ot_plan *plan;
    for (int wrong = 0; wrong < 20; wrong++) {
        model_7b(&m, 4096);
        ot_plan_request *r = &m.request;
        ot_placement device = {.tier = OT_TIER_DEVICE, .share = 1},
                     part = {.tier = OT_TIER_NVME, .share = 0.5};
        switch (wrong) {
        case 0:
            r->states = device;
            r->measured = 1;
            break;
        case 1:
            r->grads = device;
            break;
        case 2:
            r->acts = part;
            break;
        case 3:
            r->weights = (ot_placement){.tier = OT_TIER_HOST, .share = 1.5};
            break;
        case 4:
            r->chunk_params = OT_SUM_BLOCK + 1;
            break;
        case 5:
            r->ring = 1;
            break;
        case 6:
            r->prefetch_depth = -1;
            break;
        case 7:
            r->stage_count = 1;
            break;
        case 8:
            r->micro_batches = 0;
            break;
        case 9:
            m.stages[3].layers[0] = 99;
            break;
        case 10:
            m.stages[3].layers[0] = 2;
            break;
        case 11:
            m.layers[3].params = 0;
            break;
        case 12:
            r->inference = r->update_in_backward = 1;
            break;
        case 13:
            r->measured = r->update_in_backward = 1;
            break;
        case 14:
            r->micro_batches = 1 << 20;
            break;
        case 15:
            r->ranks = r->rank = 2;
            break;
        case 16:
            r->rank = 1;
            break;
        case 17:
            r->ranks = 2;
            r->measured = 1;
            break;
        case 18:
            r->zero = 4;
            break;
        default:
            r->weight_dtype = OT_FP16;
            break;
        }
        if (ot_plan_make(r, &plan) != OT_ERR_USAGE)
            fail_msg("contradiction %d is not refused", wrong);
        assert_null(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_keeps_the_invariants),
        cmocka_unit_test(tight_budgets_are_kept_or_refused),
        cmocka_unit_test(inference_holds_weights_alone),
        cmocka_unit_test(an_outline_predicts_its_plan),
        cmocka_unit_test(every_rank_keeps_the_invariants),
        cmocka_unit_test(all_ranks_have_one_plan),
        cmocka_unit_test(ranks_share_the_states),
        cmocka_unit_test(serial_lists_are_the_same),
        cmocka_unit_test(traffic_adds_up),
        cmocka_unit_test(what_is_kept_is_on_the_device),
        cmocka_unit_test(nvme_takes_less_host_memory),
        cmocka_unit_test(a_share_is_kept),
        cmocka_unit_test(memory_is_used_up),
        cmocka_unit_test(what_does_not_fit_is_told),
        cmocka_unit_test(need_is_enough),
        cmocka_unit_test(contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
