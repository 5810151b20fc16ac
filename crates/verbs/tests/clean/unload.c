/* A program that loads the libraries by dlopen and unloads them: repeatedly, in threads that
 * end, and in children. It is linked with neither. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <sys/wait.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "../support/should.h"
#include "../support/entries.h"

/* Loads both libraries in either order. */
struct loaded {
    void *verbs, *cm;
};

static struct loaded load(int cm_first) {
    struct loaded all = {0};
    if (cm_first)
        MUST((all.cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL)));
    MUST((all.verbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL)));
    if (!cm_first)
        MUST((all.cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL)));
    return all;
}

static void unload(struct loaded all, int cm_first) {
    MUST(dlclose(cm_first ? all.cm : all.verbs) == 0 &&
         dlclose(cm_first ? all.verbs : all.cm) == 0);
}

/* A function of a library, with the type that its header declares. */
#define VERBS(name) ((__typeof__(&name))found(all.verbs, #name))
#define CM(name) ((__typeof__(&name))found(all.cm, #name))
#undef ibv_reg_mr
static void *found(void *library, const char *name) {
    void *at = dlsym(library, name);
    if (!at)
        printf("no %s\n", name);
    MUST(at);
    return at;
}

/* Creates and destroys objects of every kind. */
static void objects(struct loaded all) {
    static char memory[4096];
    struct ibv_device **list = VERBS(ibv_get_device_list)(NULL);
    MUST(list && list[0]);
    struct ibv_context *context = VERBS(ibv_open_device)(list[0]);
    VERBS(ibv_free_device_list)(list);
    MUST(context);
    struct ibv_pd *pd = VERBS(ibv_alloc_pd)(context);
    struct ibv_mr *mr = VERBS(ibv_reg_mr)(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    struct ibv_comp_channel *channel = VERBS(ibv_create_comp_channel)(context);
    MUST(pd && mr && channel);
    struct ibv_cq *cq = VERBS(ibv_create_cq)(context, 4, NULL, channel, 0);
    MUST(cq);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = VERBS(ibv_create_qp)(pd, &init);
    struct ibv_wc wc;
    MUST(qp && ibv_poll_cq(cq, 1, &wc) == 0);
    MUST(VERBS(ibv_destroy_qp)(qp) == 0 && VERBS(ibv_destroy_cq)(cq) == 0 &&
         VERBS(ibv_destroy_comp_channel)(channel) == 0);
    MUST(VERBS(ibv_dereg_mr)(mr) == 0 && VERBS(ibv_dealloc_pd)(pd) == 0 &&
         VERBS(ibv_close_device)(context) == 0);
}

static struct rdma_cm_id *next(struct loaded all, struct rdma_event_channel *channel,
                               enum rdma_cm_event_type type) {
    struct rdma_cm_event *event;
    MUST(CM(rdma_get_cm_event)(channel, &event) == 0);
    MUST(event->event == type);
    struct rdma_cm_id *id = event->id;
    MUST(CM(rdma_ack_cm_event)(event) == 0);
    return id;
}

static void queue_pair(struct loaded all, struct rdma_cm_id *id) {
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    MUST(CM(rdma_create_qp)(id, NULL, &init) == 0);
}

/* Establishes and ends a connection. */
static void connection(struct loaded all) {
    struct rdma_event_channel *here = CM(rdma_create_event_channel)(),
                              *there = CM(rdma_create_event_channel)();
    struct rdma_cm_id *listener, *client, *server;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_conn_param param = {0};
    MUST(here && there && CM(rdma_create_id)(here, &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(CM(rdma_bind_addr)(listener, (struct sockaddr *)&at) == 0 &&
         CM(rdma_listen)(listener, 1) == 0);
    at.sin_port = CM(rdma_get_src_port)(listener);
    MUST(CM(rdma_create_id)(there, &client, NULL, RDMA_PS_TCP) == 0);
    MUST(CM(rdma_resolve_addr)(client, NULL, (struct sockaddr *)&at, 1000) == 0);
    next(all, there, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(CM(rdma_resolve_route)(client, 1000) == 0);
    next(all, there, RDMA_CM_EVENT_ROUTE_RESOLVED);
    queue_pair(all, client);
    MUST(CM(rdma_connect)(client, &param) == 0);
    server = next(all, here, RDMA_CM_EVENT_CONNECT_REQUEST);
    queue_pair(all, server);
    MUST(CM(rdma_accept)(server, &param) == 0);
    next(all, here, RDMA_CM_EVENT_ESTABLISHED);
    next(all, there, RDMA_CM_EVENT_ESTABLISHED);
    MUST(CM(rdma_disconnect)(client) == 0);
    next(all, here, RDMA_CM_EVENT_DISCONNECTED);
    next(all, there, RDMA_CM_EVENT_DISCONNECTED);
    CM(rdma_destroy_qp)(client);
    CM(rdma_destroy_qp)(server);
    MUST(CM(rdma_destroy_id)(client) == 0 && CM(rdma_destroy_id)(server) == 0 &&
         CM(rdma_destroy_id)(listener) == 0);
    CM(rdma_destroy_event_channel)(here);
    CM(rdma_destroy_event_channel)(there);
}

static void once(int cm_first) {
    struct loaded all = load(cm_first);
    objects(all);
    connection(all);
    unload(all, cm_first);
}

/* A thread ends after the libraries that it called were unloaded. */
static void *in_a_thread(void *cm_first) {
    once(cm_first != NULL);
    return NULL;
}

static void threads(int rounds) {
    for (int i = 0; i < rounds; i++) {
        pthread_t two[2];
        for (int t = 0; t < 2; t++)
            MUST(pthread_create(&two[t], NULL, in_a_thread, t ? two : NULL) == 0);
        for (int t = 0; t < 2; t++)
            MUST(pthread_join(two[t], NULL) == 0);
    }
}

/* Children load the libraries anew, or inherit them from their parent. */
static void children(int rounds) {
    for (int i = 0; i < rounds; i++) {
        struct loaded all = {0};
        if (i % 2)
            all = load(0);
        int status = -1;
        fflush(stdout);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            if (i % 2) {
                objects(all);
                connection(all);
                unload(all, 0);
            }
            once(i % 3 == 0);
            threads(1);
            /* Half of the children run the exit handlers. */
            if (i % 4 < 2)
                exit(0);
            _exit(0);
        }
        MUST(waitpid(child, &status, 0) == child && status == 0);
        if (i % 2)
            unload(all, 0);
    }
}

static void everything(int rounds) {
    for (int i = 0; i < rounds; i++)
        once(i % 2);
    threads(rounds);
    children(rounds);
}

int main(void) {
    alarm(120);
    /* Children that start before anything was loaded. */
    children(4);
    everything(4);
    int before = entries("/proc/self/fd"), running = entries("/proc/self/task"), after;
    everything(12);
    /* A socket that one side has closed lingers for a moment. */
    for (int tries = 0; (after = entries("/proc/self/fd")) > before && tries < 500; tries++)
        usleep(20000);
    MUST(after <= before && entries("/proc/self/task") == running);
    puts("all as it should be");
    return 0;
}
