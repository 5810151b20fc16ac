/* Connects and disconnects so many times, one after the other, both ends in this process, and tells how long that took in
 * microseconds and what is left behind: descriptors, threads, kilobytes of memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include "../place/should.h"

static int rounds;
static struct rdma_event_channel *channels[2];

static void queue_pair(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
    MUST(rdma_create_qp(id, NULL, &attr) == 0);
}

static struct rdma_cm_id *await(struct rdma_event_channel *channel, enum rdma_cm_event_type type) {
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;
    MUST(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != type) {
        fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
        exit(1);
    }
    id = event->id;
    MUST(rdma_ack_cm_event(event) == 0);
    return id;
}

/* The side that is asked: whatever comes is accepted, and goes when its peer goes. */
static void *serve(void *unused) {
    (void)unused;
    for (int gone = 0; gone < rounds;) {
        struct rdma_cm_event *event;
        MUST(rdma_get_cm_event(channels[0], &event) == 0);
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type type = event->event;
        MUST(rdma_ack_cm_event(event) == 0);
        switch (type) {
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            queue_pair(id);
            MUST(rdma_accept(id, NULL) == 0);
            break;
        case RDMA_CM_EVENT_ESTABLISHED:
            break;
        case RDMA_CM_EVENT_DISCONNECTED:
            rdma_destroy_qp(id);
            MUST(rdma_destroy_id(id) == 0);
            gone++;
            break;
        default:
            fprintf(stderr, "%s\n", rdma_event_str(type));
            exit(1);
        }
    }
    return NULL;
}

static void ask(struct sockaddr_in *to) {
    struct rdma_cm_id *id;
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    MUST(rdma_create_id(channels[1], &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000) == 0);
    await(channels[1], RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(rdma_resolve_route(id, 2000) == 0);
    await(channels[1], RDMA_CM_EVENT_ROUTE_RESOLVED);
    queue_pair(id);
    MUST(rdma_connect(id, &param) == 0);
    await(channels[1], RDMA_CM_EVENT_ESTABLISHED);
    MUST(rdma_disconnect(id) == 0);
    await(channels[1], RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_qp(id);
    MUST(rdma_destroy_id(id) == 0);
}

static long entries(const char *folder) {
    long count = 0;
    DIR *all = opendir(folder);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

static long kilobytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * 4;
}

/* Sockets that have ended on one side linger for a moment. */
static long descriptors(long wanted) {
    long left = 0;
    for (int tries = 0; tries < 100; tries++) {
        left = entries("/proc/self/fd");
        if (left <= wanted)
            break;
        usleep(50000);
    }
    return left;
}

static long microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static long run(int times, struct sockaddr_in *to) {
    pthread_t server;
    long begin = microseconds();
    rounds = times;
    MUST(pthread_create(&server, NULL, serve, NULL) == 0);
    for (int i = 0; i < times; i++)
        ask(to);
    MUST(pthread_join(server, NULL) == 0);
    return microseconds() - begin;
}

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 100;
    struct rdma_cm_id *listener;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 2; i++)
        MUST((channels[i] = rdma_create_event_channel()));
    MUST(rdma_create_id(channels[0], &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0);
    MUST(rdma_listen(listener, 0) == 0);
    at.sin_port = rdma_get_src_port(listener);
    MUST(at.sin_port != 0);
    /* Devices stay open, each with a descriptor, and a listener at loopback opens none by itself. */
    MUST(rdma_get_devices(NULL) != NULL);
    long fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    /* What is made once and kept is made now. */
    run(times / 10 + 10, &at);
    descriptors(fds);
    long memory = kilobytes();
    long took = run(times, &at);
    printf("rounds %d microseconds %ld descriptors %ld threads %ld kilobytes %ld\n", times, took, descriptors(fds) - fds,
           entries("/proc/self/task") - threads, kilobytes() - memory);
    MUST(rdma_destroy_id(listener) == 0);
    for (int i = 0; i < 2; i++)
        rdma_destroy_event_channel(channels[i]);
    return 0;
}
