/* Builds one list of a plan: takes operations in program order and works out what each has to wait for.
 *
 * Two operations conflict if they touch the same place and one of them writes. The builder adds a wait for
 * every earlier operation an operation conflicts with, unless lanes and other waits order the two already. It
 * counts on the order of the lanes but for the two NVMe lanes, which may have several chunks in flight that
 * end in any order.
 *
 * Several copies to one device place, one behind the other (the chunks of a layer), are one filling: they do
 * not wait for one another, and who reads the place waits for them all. */
#ifndef OT_OFFLOAD_BUILDER_H
#define OT_OFFLOAD_BUILDER_H

#include "offload/plan.h"

typedef struct ot_builder ot_builder;

/* For a list over `place_count` places of about `operations` operations, for which room is made beforehand, or
 * more. `serial`: each operation waits for the one before, and for nothing else. */
ot_status ot_builder_open(size_t place_count, size_t operations, int serial, ot_builder **out) OT_MUST_CHECK;
void ot_builder_close(ot_builder *builder); /* NULL is allowed */

/* An operation of which nothing is said but its kind and its lane: of an update the CPU's, which is the caller's to change. */
ot_operation ot_operation_of(ot_operation_kind kind);

/* Adds a copy of the operation; waits are the builder's to fill. Running out of memory is remembered and told by
 * ot_builder_finish. */
void ot_builder_add(ot_builder *builder, const ot_operation *operation);

/* Hands the list over, sums included, to be freed by ot_plan_free; the builder is then only good for closing. */
ot_status ot_builder_finish(ot_builder *builder, ot_list *out) OT_MUST_CHECK;

#endif
