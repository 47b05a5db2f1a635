/* deny RULE… -- COMMAND…: runs COMMAND with the kernel refusing it the things the rules name.
 *
 *   io_uring_setup=ERRNO, io_uring_enter=ERRNO, io_uring_register=ERRNO, fallocate=ERRNO, process_vm_readv=ERRNO,
 *   process_vm_writev=ERRNO  the system call fails with it
 *   register-buffers=ERRNO   io_uring_register fails with it for buffers only
 *   open-direct=ERRNO        open and openat fail with it where O_DIRECT is asked for
 *   memlock=SIZE             RLIMIT_MEMLOCK is SIZE, and CAP_IPC_LOCK is gone for good, for root too
 *
 * ERRNO is a name such as EPERM. The system calls go through a seccomp filter, which is a BPF program over
 * the number and the arguments of a call. It exits with 2 on a bad rule, 77 where the kernel does not let it
 * do this, 127 where COMMAND cannot be started. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

enum {
    EXIT_USAGE = 2,
    EXIT_SKIP = 77,
    EXIT_NO_COMMAND = 127,
    PROGRAM_MAX = 128,
    ERRNO_MAX = 4095,
    REGISTER_BUFFERS = 0,         /* IORING_REGISTER_BUFFERS */
    REGISTER_OPCODE = 0x7fffffff, /* the highest bit says how the ring is named */
    WHATEVER = -1,
};

/* A call is refused where (argument & mask) == value; with argument WHATEVER always. */
static const struct rule {
    const char *name;
    long call;
    int argument;
    uint32_t mask, value;
} rules[] = {
    {"io_uring_setup", SYS_io_uring_setup, WHATEVER, 0, 0},
    {"io_uring_enter", SYS_io_uring_enter, WHATEVER, 0, 0},
    {"io_uring_register", SYS_io_uring_register, WHATEVER, 0, 0},
    {"fallocate", SYS_fallocate, WHATEVER, 0, 0},
    {"process_vm_readv", SYS_process_vm_readv, WHATEVER, 0, 0},
    {"process_vm_writev", SYS_process_vm_writev, WHATEVER, 0, 0},
    {"register-buffers", SYS_io_uring_register, 1, REGISTER_OPCODE, REGISTER_BUFFERS},
    {"open-direct", SYS_openat, 2, O_DIRECT, O_DIRECT},
#ifdef SYS_open
    {"open-direct", SYS_open, 1, O_DIRECT, O_DIRECT},
#endif
};
enum { RULES = sizeof rules / sizeof *rules };

typedef struct program {
    struct sock_filter code[PROGRAM_MAX];
    unsigned short length;
} program;

static void emit(program *p, struct sock_filter instruction)
{
    if (p->length == PROGRAM_MAX) {
        fprintf(stderr, "deny: too many rules\n");
        exit(EXIT_USAGE);
    }
    p->code[p->length++] = instruction;
}

static void emit_load(program *p, size_t offset)
{
    emit(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

/* Goes on where the accumulator is `value`, and skips `skip` instructions otherwise. */
static void emit_match(program *p, uint32_t value, uint8_t skip)
{
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip));
}

static void emit_return(program *p, uint32_t action)
{
    emit(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* Calls of another architecture have other numbers: they are let through. */
static void emit_start(program *p)
{
#ifdef THIS_ARCH
    emit_load(p, offsetof(struct seccomp_data, arch));
    emit(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0));
    emit_return(p, SECCOMP_RET_ALLOW);
#else
    (void)p;
    fprintf(stderr, "deny: this architecture is not known here\n");
    exit(EXIT_SKIP);
#endif
}

static void emit_rule(program *p, const struct rule *rule, int code)
{
    emit_load(p, offsetof(struct seccomp_data, nr));
    emit_match(p, (uint32_t)rule->call, rule->argument == WHATEVER ? 1 : 4);
    if (rule->argument != WHATEVER) { /* its low half, which comes first on a little-endian machine */
        emit_load(p, offsetof(struct seccomp_data, args) + (size_t)rule->argument * sizeof(uint64_t));
        emit(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, rule->mask));
        emit_match(p, rule->value, 1);
    }
    emit_return(p, SECCOMP_RET_ERRNO | (uint32_t)code);
}

static int find_errno(const char *name)
{
    for (int code = 1; code < ERRNO_MAX; code++) {
        const char *known = strerrorname_np(code);
        if (known != NULL && strcmp(known, name) == 0)
            return code;
    }
    fprintf(stderr, "deny: %s is no errno\n", name);
    exit(EXIT_USAGE);
}

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "deny: %s: %s\n", what, strerror(errno));
    exit(EXIT_SKIP);
}

/* CAP_IPC_LOCK lifts the limit, so it has to go, and from the bounding set first, out of which root is given
 * it anew by exec. Where there is no right to change the bounding set, a user other than root keeps nothing
 * through exec. */
static void drop_ipc_lock(void)
{
    if (prctl(PR_CAPBSET_READ, CAP_IPC_LOCK, 0, 0, 0) == 1 &&
        prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0 && (geteuid() == 0 || getuid() == 0))
        give_up("dropping CAP_IPC_LOCK from the bounding set");
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, sets) != 0)
        give_up("capget");
    const uint32_t others = ~(1u << CAP_IPC_LOCK);
    sets[0].effective &= others;
    sets[0].permitted &= others;
    sets[0].inheritable &= others; /* and with it from the ambient set */
    if (syscall(SYS_capset, &header, sets) != 0)
        give_up("capset");
}

static void limit_memlock(const char *text)
{
    char *end;
    unsigned long long bytes = strtoull(text, &end, 10);
    if (*end == 'K' || *end == 'M')
        bytes <<= *end++ == 'K' ? 10 : 20;
    if (end == text || *end != '\0') {
        fprintf(stderr, "deny: memlock=%s: a number, or one with K or M\n", text);
        exit(EXIT_USAGE);
    }
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        give_up("setrlimit RLIMIT_MEMLOCK");
    drop_ipc_lock();
}

static void apply(program *p, const char *argument)
{
    const char *equals = strchr(argument, '=');
    size_t length = equals != NULL ? (size_t)(equals - argument) : 0;
    int known = 0;
    if (length == strlen("memlock") && strncmp(argument, "memlock", length) == 0) {
        limit_memlock(equals + 1);
        return;
    }
    for (int i = 0; equals != NULL && i < RULES; i++)
        if (strlen(rules[i].name) == length && strncmp(argument, rules[i].name, length) == 0) {
            emit_rule(p, &rules[i], find_errno(equals + 1));
            known = 1;
        }
    if (!known) {
        fprintf(stderr, "deny: %s is no rule: memlock=SIZE, or one of these with =ERRNO:", argument);
        for (int i = 0; i < RULES; i++)
            if (i == 0 || strcmp(rules[i].name, rules[i - 1].name) != 0)
                fprintf(stderr, " %s", rules[i].name);
        fputc('\n', stderr);
        exit(EXIT_USAGE);
    }
}

static void install(program *p)
{
    struct sock_fprog filter = {p->length, p->code};
    /* Without privileges a filter is only allowed to a process that cannot gain any. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        give_up("PR_SET_NO_NEW_PRIVS");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        give_up("no seccomp filter here");
}

int main(int argc, char **argv)
{
    program p = {.length = 0};
    int i = 1;
    emit_start(&p);
    unsigned short start = p.length;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        apply(&p, argv[i]);
    if (i == 1 || i + 1 >= argc) {
        fprintf(stderr, "usage: deny RULE… -- COMMAND…\n");
        return EXIT_USAGE;
    }
    emit_return(&p, SECCOMP_RET_ALLOW);
    if (p.length > start + 1)
        install(&p);
    execvp(argv[i + 1], argv + i + 1);
    fprintf(stderr, "deny: cannot start %s: %s\n", argv[i + 1], strerror(errno));
    return EXIT_NO_COMMAND;
}
