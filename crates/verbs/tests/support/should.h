/* Checks of the test programs in C: each failure prints a line on standard output and sets
 * `wrong` to 1. */
#ifndef SHOULD
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>

static int wrong __attribute__((unused));

#define SHOULD(what) \
    do { \
        errno = 0; \
        if (!(what)) { \
            printf("%s:%d: not so: %s (errno %d)\n", __func__, __LINE__, #what, errno); \
            fflush(stdout); \
            wrong = 1; \
        } \
    } while (0)

/* A call that returns -1 and this errno. */
#define FAILS(call, number) SHOULD((call) == -1 && errno == (number))

/* A call that returns null and this errno. */
#define NONE(call, number) SHOULD((call) == NULL && errno == (number))

/* A check without which the rest makes no sense. */
#define MUST(what) \
    do { \
        errno = 0; \
        if (!(what)) { \
            printf("%s:%d: cannot go on: %s (errno %d)\n", __func__, __LINE__, #what, errno); \
            fflush(stdout); \
            exit(2); \
        } \
    } while (0)

/* The calling thread's number, for `sleeps`. */
static inline int thread_number(void) { return syscall(SYS_gettid); }

/* Returns once a thread of this process waits. */
static inline void sleeps(int thread) {
    for (char state = 0; state != 'S';) {
        char name[64];
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
        FILE *file = fopen(name, "r");
        MUST(file && fscanf(file, "%*d %*s %c", &state) == 1);
        fclose(file);
        usleep(100);
    }
}
#endif
