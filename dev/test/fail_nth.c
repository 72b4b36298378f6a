/*
Makes one system call of a program fail. dev/test/faults.sh preloads this library. Calls on paths that contain FAIL_IN
are counted from 1, and the call with the number FAIL_AT is struck. A seccomp filter turns each system call into a
signal, so the calls that stdio makes count too.
  FAIL_IN     part of a path: relative, as the program gives it, or for a file descriptor absolute. With a $ at its
              end, the path must end there
  FAIL_CALLS  names in the table `calls`, separated by commas (default: all but read)
  FAIL_AT     number of the call; 0: none
  FAIL_MORE   number of further calls to strike, directly after FAIL_AT (default 0)
  FAIL_WITH   ENOSPC, EIO, EROFS, EDQUOT or EACCES: the call fails with this errno
              short: a write takes half of its bytes; calls that cannot be shortened are not counted
              kill, stop: SIGKILL or SIGSTOP before the call
  FAIL_SIGNAL number of a signal that the program gets before the call fails (default: none)
  FAIL_RANK   the rank of mpirun whose calls are struck (default: all ranks)
  FAIL_NOTE   a file for the result: a line for each call that was struck, and at exit the line `calls N`
Exit status 77 at the start: the system has no seccomp filters.
*/
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

// path: index of the argument that is a path; -1: argument 0 is a file descriptor
static const struct {
    const char *name;
    int number, path;
} calls[] = {
    {"open", SYS_openat, 1},      {"write", SYS_write, -1},        {"write", SYS_pwrite64, -1},
    {"write", SYS_writev, -1},    {"fsync", SYS_fsync, -1},        {"fsync", SYS_fdatasync, -1},
    {"close", SYS_close, -1},     {"truncate", SYS_ftruncate, -1}, {"truncate", SYS_fallocate, -1},
    {"rename", SYS_renameat2, 1}, {"unlink", SYS_unlinkat, 1},     {"mkdir", SYS_mkdirat, 1},
    {"read", SYS_read, -1},       {"read", SYS_pread64, -1},
#ifdef SYS_renameat
    {"rename", SYS_renameat, 1},
#endif
#ifdef SYS_open  // x86-64 has also the calls without a folder
    {"open", SYS_open, 0},        {"rename", SYS_rename, 0},       {"unlink", SYS_unlink, 0},
    {"unlink", SYS_rmdir, 0},     {"mkdir", SYS_mkdir, 0},
#endif
};
static const struct {
    const char *name;
    int number;
} errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EROFS", EROFS}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES}};

static struct {
    char in[256], calls[256], with[16], note[4096];
    long at, more, signal, seen;
} fail;

static void note(const char *line) {
    if (!*fail.note) { return; }
    int file = (int)syscall(SYS_openat, AT_FDCWD, fail.note, O_WRONLY | O_CREAT | O_APPEND, 0666);
    syscall(SYS_write, file, line, strlen(line));
    syscall(SYS_close, file);
}

// whether `name` is one of FAIL_CALLS
static int is_chosen(const char *name) {
    size_t length = strlen(name);
    if (!*fail.calls) { return strcmp(name, "read") != 0; }
    for (const char *at = fail.calls; (at = strstr(at, name)) != NULL; at++) {
        if ((at == fail.calls || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) { return 1; }
    }
    return 0;
}

// whether a path contains FAIL_IN
static bool is_in(const char *path) {
    size_t length = strlen(path), tail = strlen(fail.in) - 1;
    if (fail.in[tail] != '$') { return strstr(path, fail.in) != NULL; }
    return length >= tail && strncmp(path + length - tail, fail.in, tail) == 0;
}

// path (4096 bytes) = the path of a call's file
static void path_of(char *path, int which, const long args[6]) {
    char link[64];
    if (which >= 0) {
        snprintf(path, 4096, "%s", (const char *)args[which]);  // NOLINT(performance-no-int-to-ptr)
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%ld", args[0]);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    path[length > 0 ? length : 0] = 0;
}

// whether FAIL_WITH can strike a call; `short` needs a write of two bytes or more
static int can_strike(int number, const char *name, const long args[6]) {
    bool shortens = strcmp(fail.with, "short") == 0;
    return !shortens || (strcmp(name, "write") == 0 && number != SYS_writev && args[2] > 1);
}

// Strikes a call. Returns its result, or a negative errno.
static long strike(int number, long args[6]) {
    if (strcmp(fail.with, "kill") == 0) { kill(getpid(), SIGKILL); }
    if (strcmp(fail.with, "stop") == 0) { kill(getpid(), SIGSTOP); }
    if (strcmp(fail.with, "short") == 0) { args[2] /= 2; }
    if (fail.signal) { kill(getpid(), (int)fail.signal); }
    for (size_t i = 0; i < COUNT(errors); i++) {
        if (strcmp(fail.with, errors[i].name) != 0) { continue; }
        if (number == SYS_close) { syscall(number, args[0]); }
        return -errors[i].number;
    }
    long result = syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
    return result == -1 ? -errno : result;
}

// Runs a call that the filter has stopped. Returns its result, or a negative errno.
static long answer(int number, long args[6]) {
    char path[4096], line[4200];
    size_t i = 0;
    while (i < COUNT(calls) && calls[i].number != number) { i++; }
    if (i < COUNT(calls) && is_chosen(calls[i].name)) {
        path_of(path, calls[i].path, args);
        bool counts = is_in(path) && can_strike(number, calls[i].name, args);
        long seen = counts ? __atomic_add_fetch(&fail.seen, 1, __ATOMIC_RELAXED) : -1;
        bool is_due = fail.at > 0 && seen >= fail.at && seen <= fail.at + fail.more;
        if (is_due) {
            snprintf(line, sizeof line, "%ld %s %s\n", seen, calls[i].name, path);
            note(line);
            return strike(number, args);
        }
    }
    long result = syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
    return result == -1 ? -errno : result;
}

static void on_call(int signal, siginfo_t *info, void *context) {
    int before = errno;
    (void)signal;
#ifdef __x86_64__
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long args[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    r[REG_RAX] = answer(info->si_syscall, args);
#else
    unsigned long long *r = ((ucontext_t *)context)->uc_mcontext.regs;
    long args[6] = {(long)r[0], (long)r[1], (long)r[2], (long)r[3], (long)r[4], (long)r[5]};
    r[0] = (unsigned long long)answer(info->si_syscall, args);
#endif
    errno = before;
}

// Open MPI's threads block all signals. A blocked SIGSYS would end the program, so it is never blocked.
static int mask_without(int how, const sigset_t *set, sigset_t *old, const char *function) {
    int (*mask)(int, const sigset_t *, sigset_t *) =
        (int (*)(int, const sigset_t *, sigset_t *))dlsym(RTLD_NEXT, function);
    sigset_t others;
    if (!set || how == SIG_UNBLOCK) { return mask(how, set, old); }
    others = *set;
    sigdelset(&others, SIGSYS);
    return mask(how, &others, old);
}

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): glibc begins its names with __
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    return mask_without(how, set, old, "pthread_sigmask");
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old) { return mask_without(how, set, old, "sigprocmask"); }
// NOLINTEND(readability-inconsistent-declaration-parameter-name)

// Each call of the table traps, except from the C library's function syscall(), which the signal handler uses.
static int install_filter(void) {
    enum { WORD = BPF_LD | BPF_W | BPF_ABS, ADDRESS = offsetof(struct seccomp_data, instruction_pointer) };
    const uint64_t begin = (uint64_t)(uintptr_t)&syscall;
    struct sock_filter code[16 + 2 * COUNT(calls)] = {
        BPF_STMT(WORD, ADDRESS + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(begin >> 32), 0, 4),
        BPF_STMT(WORD, ADDRESS),
        BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, (uint32_t)begin),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 96, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(WORD, offsetof(struct seccomp_data, nr)),
    };
    unsigned short n = 7;
    for (size_t i = 0; i < COUNT(calls); i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void copy_variable(char *text, size_t size, const char *name) {
    const char *value = getenv(name);
    snprintf(text, size, "%s", value ? value : "");
}

__attribute__((constructor)) static void begin(void) {
    char number[32], rank[16], only[16];
    copy_variable(only, sizeof only, "FAIL_RANK");
    copy_variable(rank, sizeof rank, "OMPI_COMM_WORLD_RANK");
    copy_variable(fail.in, sizeof fail.in, "FAIL_IN");
    if (!*fail.in || (*only && strcmp(only, rank) != 0)) { return; }
    copy_variable(fail.calls, sizeof fail.calls, "FAIL_CALLS");
    copy_variable(fail.with, sizeof fail.with, "FAIL_WITH");
    copy_variable(fail.note, sizeof fail.note, "FAIL_NOTE");
    copy_variable(number, sizeof number, "FAIL_AT");
    fail.at = atol(number);
    copy_variable(number, sizeof number, "FAIL_MORE");
    fail.more = atol(number);
    copy_variable(number, sizeof number, "FAIL_SIGNAL");
    fail.signal = atol(number);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_call;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    sigaction(SIGSYS, &action, NULL);
    if (!install_filter()) { _exit(77); }
}

__attribute__((destructor)) static void end(void) {
    char line[64];
    snprintf(line, sizeof line, "calls %ld\n", fail.seen);
    if (*fail.in) { note(line); }
}
