/* Connects to a server process and disconnects, repeatedly, and compares descriptors, threads
 * and memory of both processes before and afterwards.
 *
 *   churn rounds COUNT          COUNT connections; fails if anything is left behind
 *   churn seconds COUNT RATE    for COUNT seconds, a line each ten seconds; fails also below RATE
 *                               connections a second
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <rdma/rdma_cma.h>
#include "../support/should.h"

/* The fluctuation of allocators and threads. A leak of a byte for each connection exceeds it
 * within a minute. */
enum { KILOBYTES = 1024, WARM = 1000 };

/* The resources of a process. */
struct has {
    long descriptors, threads, kilobytes;
};

static void queue_pair(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    MUST(rdma_create_qp(id, NULL, &attr) == 0);
}

static struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type type) {
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;
    MUST(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != type) {
        fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status,
                rdma_event_str(type));
        exit(1);
    }
    id = event->id;
    MUST(rdma_ack_cm_event(event) == 0);
    return id;
}

/* The server accepts each connection and destroys it when its peer disconnects. A peer that
 * sends private data is the last. */
static int serve(int tell) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *last = NULL;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 0) == 0);
    at.sin_port = rdma_get_src_port(listener);
    MUST(write(tell, &at.sin_port, sizeof(at.sin_port)) == sizeof(at.sin_port));
    for (int gone = 0; !gone;) {
        struct rdma_cm_event *event;
        MUST(rdma_get_cm_event(channel, &event) == 0);
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type type = event->event;
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.private_data_len > 0)
            last = id;
        MUST(rdma_ack_cm_event(event) == 0);
        switch (type) {
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            queue_pair(id);
            MUST(rdma_accept(id, NULL) == 0);
            break;
        case RDMA_CM_EVENT_ESTABLISHED:
            break;
        case RDMA_CM_EVENT_DISCONNECTED:
            gone = id == last;
            rdma_destroy_qp(id);
            MUST(rdma_destroy_id(id) == 0);
            break;
        default:
            fprintf(stderr, "%s\n", rdma_event_str(type));
            return 1;
        }
    }
    MUST(rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(channel);
    return 0;
}

static struct rdma_event_channel *channel;
static struct sockaddr_in server_at = {.sin_family = AF_INET};

static void ask(const char *data) {
    struct rdma_cm_id *id;
    struct rdma_conn_param param = {.responder_resources = 1,
                                    .initiator_depth = 1,
                                    .private_data = data,
                                    .private_data_len = data ? strlen(data) : 0};
    MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&server_at, 2000) == 0);
    await(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(rdma_resolve_route(id, 2000) == 0);
    await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    queue_pair(id);
    MUST(rdma_connect(id, &param) == 0);
    await(channel, RDMA_CM_EVENT_ESTABLISHED);
    MUST(rdma_disconnect(id) == 0);
    await(channel, RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_qp(id);
    MUST(rdma_destroy_id(id) == 0);
}

static long entries(pid_t process, const char *folder) {
    char path[64];
    long count = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", process, folder);
    DIR *all = opendir(path);
    MUST(all);
    for (struct dirent *entry; (entry = readdir(all));)
        count += entry->d_name[0] != '.';
    closedir(all);
    /* The directory's own descriptor is among the entries. */
    return count - (process == getpid() && strcmp(folder, "fd") == 0);
}

static long kilobytes(pid_t process) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", process);
    FILE *file = fopen(path, "r");
    MUST(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static struct has has(pid_t process) {
    return (struct has){entries(process, "fd"), entries(process, "task"), kilobytes(process)};
}

/* Waits until the numbers are stable: a socket that one side has closed lingers for a moment. */
static struct has calm(pid_t process) {
    struct has now = has(process), last;
    for (int same = 0, tries = 0; same < 10 && tries < 500; tries++) {
        last = now;
        usleep(20000);
        now = has(process);
        same = now.descriptors == last.descriptors && now.threads == last.threads ? same + 1 : 0;
    }
    return now;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void show(const char *side, struct has now) {
    printf("  %s: %ld descriptors, %ld threads, %ld KB", side, now.descriptors, now.threads,
           now.kilobytes);
}

static int left(const char *side, struct has before, struct has after) {
    int more = after.descriptors > before.descriptors || after.threads > before.threads ||
               after.kilobytes > before.kilobytes + KILOBYTES;
    show(side, before);
    show("at the end", after);
    puts(more ? ": something is left behind" : "");
    return more;
}

int main(int argc, char **argv) {
    int timed = argc == 4 && strcmp(argv[1], "seconds") == 0, pipes[2], status = 0;
    if (!timed && !(argc == 3 && strcmp(argv[1], "rounds") == 0)) {
        fprintf(stderr, "churn rounds COUNT | churn seconds COUNT RATE\n");
        return 2;
    }
    long count = atol(argv[2]), made = 0;
    MUST(pipe2(pipes, 0) == 0);
    pid_t server = fork();
    MUST(server >= 0);
    if (server == 0) {
        /* The child ends with its parent. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return serve(pipes[1]);
    }
    close(pipes[1]);
    MUST(read(pipes[0], &server_at.sin_port, sizeof(server_at.sin_port)) ==
         sizeof(server_at.sin_port));
    server_at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST((channel = rdma_create_event_channel()));
    /* Create what the process creates once and keeps. */
    for (int i = 0; i < WARM; i++)
        ask(NULL);
    struct has ours = calm(getpid()), theirs = calm(server);
    double begin = seconds(), told = begin, now = begin;
    for (long then = 0; timed ? now < begin + count : made < count; made++) {
        ask(NULL);
        now = seconds();
        if (timed && now >= told + 10) {
            printf("%3.0f s: %.0f a second", now - begin, (made + 1 - then) / (now - told));
            show("client", has(getpid()));
            show("server", has(server));
            puts("");
            fflush(stdout);
            told = now;
            then = made + 1;
        }
    }
    double rate = made / (seconds() - begin);
    printf("%ld connections, %.0f a second\n", made, rate);
    wrong = left("client", ours, calm(getpid())) | left("server", theirs, calm(server));
    ask("the last");
    MUST(waitpid(server, &status, 0) == server);
    rdma_destroy_event_channel(channel);
    if (status != 0)
        printf("the server has failed\n");
    if (timed && rate < atof(argv[3])) {
        printf("fewer than %s a second\n", argv[3]);
        wrong = 1;
    }
    if (!wrong && status == 0)
        puts("nothing is left behind");
    return wrong || status != 0;
}
