/* Checks of the test programs: each failure prints a line on standard output and sets `wrong`. */
#ifndef SHOULD
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sprat.h>

static int wrong;
/* The error of the last call that got one. */
static sprat_error error;

#define SHOULD(what) \
    do { \
        if (!(what)) { \
            printf("%s:%d: not so: %s (%s)\n", __func__, __LINE__, #what, error.message); \
            fflush(stdout); \
            wrong = 1; \
        } \
    } while (0)

/* A call that returns this status, which the error has too, with a text if it is a failure. */
#define GIVES(expected, call) \
    do { \
        sprat_status status_ = (call); \
        if (status_ != (expected) || error.status != (int)status_ || \
            (error.message[0] == 0) != (status_ == SPRAT_OK)) { \
            printf("%s:%d: %d instead of %s: %s (%s)\n", __func__, __LINE__, (int)status_, \
                   #expected, #call, error.message); \
            fflush(stdout); \
            wrong = 1; \
        } \
    } while (0)

/* A call without which the rest makes no sense. */
#define MUST(call) \
    do { \
        sprat_status status_ = (call); \
        if (status_ != SPRAT_OK) { \
            printf("%s:%d: cannot go on: %s: %d (%s)\n", __func__, __LINE__, #call, \
                   (int)status_, error.message); \
            exit(2); \
        } \
    } while (0)

/* Prints the last line of a test program and returns its exit status. */
static inline int ended(void)
{
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
#endif
