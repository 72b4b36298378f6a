/*
A child process: this program with other arguments. Its parent reads the lines of its stdout and stderr.
defines: Child, ChildEvent, child_start, child_line, child_end
posix_spawn starts the child: no code of ours runs in a copy of this process, whose CUDA and MPI would not be valid.
*/
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    pid_t id;
    int lines;    // read end of a pipe
    int seconds;  // longest silence
} Child;

typedef enum { CHILD_LINE, CHILD_ENDED, CHILD_SILENT } ChildEvent;

// Returns 0 or errno. argv ends with NULL.
static inline int child_start(Child *child, char *const *argv, int seconds) {
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) { return errno; }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    int error = posix_spawn(&child->id, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    child->lines = ends[0];
    child->seconds = seconds;
    if (error) { close(ends[0]); }
    return error;
}

// line = the next line of the child, cut to `room`; a last line may lack its newline
static inline ChildEvent child_line(const Child *child, char *line, size_t room) {
    struct pollfd lines = {child->lines, POLLIN, 0};
    size_t length = 0;
    char c = 0;
    while (c != '\n') {
        int ready = poll(&lines, 1, 1000 * child->seconds);
        if (ready < 0 && errno == EINTR) { continue; }
        if (ready == 0) { return CHILD_SILENT; }
        if (read(child->lines, &c, 1) != 1) { break; }
        if (c != '\n' && length + 1 < room) { line[length++] = c; }
    }
    line[length] = 0;
    return c == '\n' || length > 0 ? CHILD_LINE : CHILD_ENDED;
}

// Waits for an ended child, and ends a silent one. why = the reason for the end, with the child's last line, if it has
// one. A silent child that the driver does not let go is left behind after ten seconds.
static inline void child_end(const Child *child, ChildEvent event, const char *last, char *why, size_t room) {
    const char *separator = *last ? ": " : "";
    int status = 0;
    close(child->lines);
    if (event == CHILD_SILENT) {
        kill(child->id, SIGKILL);
        for (int tenths = 0; tenths < 100 && waitpid(child->id, &status, WNOHANG) == 0; tenths++) { usleep(100000); }
        snprintf(why, room, "no answer for %d s", child->seconds);
        return;
    }
    while (waitpid(child->id, &status, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(status)) {
        snprintf(why, room, "%s%s%s", strsignal(WTERMSIG(status)), separator, last);
    } else if (*last) {
        snprintf(why, room, "%s", last);
    } else {
        snprintf(why, room, "exit status %d", WEXITSTATUS(status));
    }
}
