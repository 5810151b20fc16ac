/* Events and shared queues as C programs use them: channels, threads that wait, errors. */
#include "path.h"

static void *late_ack(void *cq) {
    /* The first thread destroys the queue and must wait. */
    sleeps(getpid());
    ibv_ack_cq_events(cq, 2);
    return NULL;
}

static void interrupted(int signal) {
    (void)signal;
}

static void channels(void) {
    struct side s[2];
    struct ibv_cq *cq;
    void *user;
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    struct pollfd waits = {.fd = b->channel->fd, .events = POLLIN};
    struct ibv_sge sge = piece(a, 0, 4);
    struct ibv_send_wr send = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    for (int i = 0; i < 8; i++)
        SHOULD(receive(b, i, 0, 4) == 0);
    /* A queue that is not armed raises no event. */
    post_and_wait(a, send);
    SHOULD(next_completion(b).wr_id == 0 && poll(&waits, 1, 0) == 0);
    /* A queue armed for solicited completions raises no event for others. */
    SHOULD(ibv_req_notify_cq(b->cq, 1) == 0);
    post_and_wait(a, send);
    SHOULD(next_completion(b).wr_id == 1 && poll(&waits, 1, 0) == 0);
    send.send_flags |= IBV_SEND_SOLICITED;
    post_and_wait(a, send);
    /* The engine's thread raises the event without a poll. */
    SHOULD(poll(&waits, 1, 10000) == 1 && waits.revents == POLLIN);
    SHOULD(ibv_get_cq_event(b->channel, &cq, &user) == 0 && cq == b->cq && user == b);
    SHOULD(poll(&waits, 1, 0) == 0 && next_completion(b).wr_id == 2);
    /* One event for each arming. */
    SHOULD(ibv_req_notify_cq(b->cq, 0) == 0);
    post_and_wait(a, send);
    post_and_wait(a, send);
    SHOULD(ibv_get_cq_event(b->channel, &cq, &user) == 0 && cq == b->cq);
    SHOULD(next_completion(b).wr_id == 3 && next_completion(b).wr_id == 4 &&
           poll(&waits, 1, 0) == 0);
    SHOULD(fcntl(b->channel->fd, F_SETFL, O_NONBLOCK) == 0);
    SHOULD(ibv_get_cq_event(b->channel, &cq, &user) == -1 && errno == EAGAIN);
    /* A signal interrupts the wait, as with hardware. */
    SHOULD(fcntl(b->channel->fd, F_SETFL, 0) == 0);
    struct sigaction action = {.sa_handler = interrupted};
    struct itimerspec soon = {.it_value.tv_nsec = 20000000};
    struct sigevent by = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &by, &timer) == 0);
    MUST(timer_settime(timer, 0, &soon, NULL) == 0);
    SHOULD(ibv_get_cq_event(b->channel, &cq, &user) == -1 && errno == EINTR);
    timer_delete(timer);
    /* A fetched event is acknowledged before its queue is destroyed; one that was not fetched is
     * discarded. */
    SHOULD(ibv_req_notify_cq(b->cq, 0) == 0);
    post_and_wait(a, send);
    SHOULD(poll(&waits, 1, 10000) == 1);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, late_ack, b->cq) == 0);
    SHOULD(ibv_resize_cq(b->cq, 8) == 0 && ibv_resize_cq(b->cq, 0) == EINVAL && b->cq->cqe >= 8);
    int fd = b->channel->fd;
    (void)fd;
    finish(s);
    pthread_join(thread, NULL);
}

static void *waits_for_events(void *channel) {
    struct ibv_cq *cq;
    void *user;
    ibv_get_cq_event(channel, &cq, &user);
    return NULL;
}

static void *waits_for_mishaps(void *context) {
    struct ibv_async_event event;
    ibv_get_async_event(context, &event);
    return NULL;
}

/* A waiting thread can be cancelled, and a device stays open while objects of it exist. */
static void devices(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    MUST(list != NULL && list[0] != NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    MUST(context != NULL);
    pthread_t early, late;
    void *ended;
    MUST(pthread_create(&early, NULL, waits_for_mishaps, context) == 0);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    MUST(channel != NULL);
    MUST(pthread_create(&late, NULL, waits_for_events, channel) == 0);
    SHOULD(pthread_cancel(late) == 0 && pthread_join(late, &ended) == 0 &&
           ended == PTHREAD_CANCELED);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);
    MUST(cq != NULL);
    SHOULD(ibv_destroy_comp_channel(channel) == EBUSY);
    SHOULD(pthread_cancel(early) == 0 && pthread_join(early, &ended) == 0 &&
           ended == PTHREAD_CANCELED);
    SHOULD(ibv_create_cq(context, 0, NULL, NULL, 0) == NULL && errno == EINVAL);
    SHOULD(ibv_create_cq(context, 1, NULL, NULL, 1) == NULL && errno == EINVAL);
    SHOULD(ibv_create_cq(NULL, 1, NULL, NULL, 0) == NULL && errno == EINVAL);
    SHOULD(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 &&
           ibv_close_device(context) == 0);
    SHOULD(ibv_destroy_cq(NULL) == EINVAL && ibv_destroy_qp(NULL) == EINVAL &&
           ibv_destroy_srq(NULL) == EINVAL);
    SHOULD(ibv_destroy_comp_channel(NULL) == EINVAL && ibv_modify_qp(NULL, NULL, 0) == EINVAL);
}

static void shared_queues(void) {
    struct side s[2];
    struct ibv_async_event event;
    struct ibv_srq_attr attr = {.srq_limit = 3};
    connect_sides(s, (struct options){.shared = 1});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_context *context = b->id->verbs;
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_sge sge = piece(a, 0, 4);
    struct ibv_send_wr send = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    uint32_t number;
    SHOULD(ibv_post_recv(b->qp, &wr, &bad) == EINVAL && bad == &wr);
    SHOULD(ibv_get_srq_num(b->srq, &number) == 0);
    for (int i = 0; i < 4; i++)
        SHOULD(receive(b, 10 + i, 0, 4) == 0);
    SHOULD(ibv_modify_srq(b->srq, &attr, IBV_SRQ_LIMIT) == 0);
    SHOULD(ibv_query_srq(b->srq, &attr) == 0 && attr.srq_limit == 3 && attr.max_wr == DEPTH);
    post_and_wait(a, send);
    SHOULD(next_completion(b).wr_id == 10);
    post_and_wait(a, send);
    struct pollfd waits = {.fd = context->async_fd, .events = POLLIN};
    SHOULD(poll(&waits, 1, 10000) == 1);
    SHOULD(ibv_get_async_event(context, &event) == 0 &&
           event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == b->srq);
    ibv_ack_async_event(&event);
    SHOULD(ibv_query_srq(b->srq, &attr) == 0 && attr.srq_limit == 0);
    SHOULD(ibv_destroy_srq(b->srq) == EBUSY);
    attr.max_wr = 8;
    SHOULD(ibv_modify_srq(b->srq, &attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
    SHOULD(ibv_modify_srq(b->srq, &attr, 4) == EINVAL);
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    SHOULD(next_completion(b).wr_id == 11 && ibv_modify_qp(b->qp, &error, IBV_QP_STATE) == 0);
    SHOULD(ibv_get_async_event(context, &event) == 0 &&
           event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == b->qp);
    ibv_ack_async_event(&event);
    finish(s);
}

static void errors_of_the_peer(void) {
    struct side s[2];
    struct ibv_async_event event;
    struct ibv_wc wc;
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    struct ibv_sge sge = piece(a, 0, 4);
    /* A Write beyond the region puts both queue pairs into error and raises an event at the
     * target. */
    SHOULD(receive(b, 5, 0, 4) == 0);
    struct ibv_send_wr write = {.wr_id = 1,
                                .sg_list = &sge,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .wr.rdma = {(uintptr_t)b->memory + ROOM, b->mr->rkey}},
                       *bad;
    SHOULD(ibv_post_send(a->qp, &write, &bad) == 0);
    SHOULD(ibv_get_async_event(b->id->verbs, &event) == 0 &&
           event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b->qp);
    ibv_ack_async_event(&event);
    wc = next_completion(b);
    SHOULD(wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR);
    /* A Terminate reports the error to the requester. */
    SHOULD(ibv_get_async_event(a->id->verbs, &event) == 0 &&
           event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == a->qp);
    ibv_ack_async_event(&event);
    /* A local key of another domain or without the right. */
    finish(s);
    connect_sides(s, (struct options){0});
    sge = piece(a, ROOM - 2, 4);
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 2,
                                        .sg_list = &sge,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_WRITE,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .wr.rdma = {(uintptr_t)b->memory, b->mr->rkey}});
    SHOULD(wc.wr_id == 2 && wc.status == IBV_WC_LOC_PROT_ERR);
    finish(s);
    /* A Read of memory without the right. */
    connect_sides(s, (struct options){0});
    sge = piece(a, 0, 4);
    wc = post_and_wait(a, (struct ibv_send_wr){.wr_id = 3,
                                        .sg_list = &sge,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_READ,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .wr.rdma = {(uintptr_t)b->memory, b->mr->rkey + 1}});
    SHOULD(wc.wr_id == 3 && wc.status == IBV_WC_REM_ACCESS_ERR);
    finish(s);
    /* A message that is longer than its receive. */
    connect_sides(s, (struct options){0});
    SHOULD(receive(b, 4, 0, 3) == 0);
    struct ibv_send_wr send = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    sge = piece(a, 0, 4);
    SHOULD(ibv_post_send(a->qp, &send, &bad) == 0);
    wc = next_completion(b);
    SHOULD(wc.wr_id == 4 && wc.status == IBV_WC_LOC_LEN_ERR);
    finish(s);
}

static void overflow(void) {
    struct side s[2];
    struct ibv_async_event event;
    connect_sides(s, (struct options){0});
    struct side *a = &s[0], *b = &s[1];
    SHOULD(ibv_resize_cq(b->cq, 1) == 0 && receive(b, 1, 0, 4) == 0 && receive(b, 2, 0, 4) == 0);
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
    SHOULD(ibv_post_send(a->qp, &send, &bad) == 0 && ibv_post_send(a->qp, &send, &bad) == 0);
    SHOULD(ibv_get_async_event(b->id->verbs, &event) == 0 && event.event_type == IBV_EVENT_CQ_ERR &&
           event.element.cq == b->cq);
    ibv_ack_async_event(&event);
    SHOULD(ibv_get_async_event(b->id->verbs, &event) == 0 &&
           event.event_type == IBV_EVENT_QP_FATAL);
    ibv_ack_async_event(&event);
    SHOULD(ibv_get_async_event(a->id->verbs, &event) == 0 && event.element.qp == a->qp);
    ibv_ack_async_event(&event);
    finish(s);
}

/* A rejected Write in a program that reads no events and exits: for its log. */
static void refused_silently(void) {
    struct side s[2];
    connect_sides(s, (struct options){0});
    struct ibv_sge sge = piece(&s[0], 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = {(uintptr_t)s[1].memory, s[1].mr->rkey ^ 0x100}}, *bad;
    MUST(receive(&s[0], 1, 0, 4) == 0 && receive(&s[1], 1, 0, 4) == 0);
    MUST(ibv_post_send(s[0].qp, &wr, &bad) == 0);
    while (next_completion(&s[0]).wr_id != 1)
        ;
    SHOULD(next_completion(&s[1]).status == IBV_WC_WR_FLUSH_ERR);
    exit(wrong);
}

int main(int count, char **names) {
    struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"channels", channels},
                 {"devices", devices},
                 {"shared_queues", shared_queues},
                 {"errors_of_the_peer", errors_of_the_peer},
                 {"overflow", overflow}};
    alarm(60);
    if (count == 2 && strcmp(names[1], "refused_silently") == 0)
        refused_silently();
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
        if (count < 2 || strcmp(names[1], tests[i].name) == 0)
            tests[i].run();
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
