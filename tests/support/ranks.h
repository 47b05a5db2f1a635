/* Ranks for tests: threads of this process that exchange parcels through memory, or the processes that mpirun has started. */
#ifndef OT_TESTS_SUPPORT_RANKS_H
#define OT_TESTS_SUPPORT_RANKS_H

#include "kernels/collective.h"

/* What goes wrong between threads; -1: nothing. */
typedef struct ranks_fault {
    int damage_from, damage_to; /* a bit of every parcel between these two is flipped */
} ranks_fault;

typedef struct rank_hub rank_hub;
rank_hub *ranks_open(int size, ranks_fault fault);
void ranks_close(rank_hub *hub);                        /* when no transport is in use any more */
ot_transport *ranks_transport(rank_hub *hub, int rank); /* owned by the hub */

/* What each rank does; on threads of their own, where cmocka's assertions do not work: must() does. */
typedef void ranks_body(ot_group *group, void *context);

/* Runs the body on `size` threads with a group of their own. */
void ranks_run(int size, double timeout_s, ranks_body *body, void *context);

/* Ends the process with the place and the last failure's text where the condition does not hold. */
#define must(condition) ((condition) ? (void)0 : must_fail(__FILE__, __LINE__, #condition))
void must_fail(const char *file, int line, const char *condition) __attribute__((noreturn));

#endif
