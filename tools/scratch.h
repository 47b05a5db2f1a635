/* A folder in shared memory for what MPI makes while ranks run: a killed mpirun leaves its segments and sockets, and in a folder of
 * ours it is clear whose they are. */
#ifndef OT_TOOLS_SCRATCH_H
#define OT_TOOLS_SCRATCH_H

enum { OT_SCRATCH_BYTES = 64 };

typedef struct ot_scratch {
    char path[OT_SCRATCH_BYTES]; /* "": there is none, and MPI takes its own places */
    int fd; /* with the lock, which children inherit: the folder is in use as long as one of them lives */
} ot_scratch;

/* Removes the folders of this user that nobody holds any more, and makes one. */
void ot_scratch_open(ot_scratch *out);
void ot_scratch_close(ot_scratch *scratch);

#endif
