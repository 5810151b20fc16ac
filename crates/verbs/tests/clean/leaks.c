/* The descriptors that remain after everything is destroyed: only those that the libraries open
 * once for a process, however often objects are created and destroyed. */
#include <dirent.h>
#include <rdma/rdma_verbs.h>
#include "../path/path.h"
#include "../support/entries.h"

enum { MOST = 64, ROUNDS = 5 };

/* The kinds of this process's descriptors. */
struct open {
    int count;
    char what[MOST][64];
};

static struct open descriptors(void) {
    struct open all = {0};
    DIR *folder = opendir("/proc/self/fd");
    MUST(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(folder))
            continue;
        char path[300];
        MUST(all.count < MOST);
        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, all.what[all.count], sizeof(all.what[0]) - 1);
        MUST(length > 0);
        all.count++;
    }
    closedir(folder);
    return all;
}

static int count(const struct open *all, const char *kind) {
    int found = 0;
    for (int i = 0; i < all->count; i++)
        found += strstr(all->what[i], kind) == all->what[i];
    return found;
}

/* Waits for sockets: one that a side has closed lingers for a moment. */
static struct open without_sockets(int wanted) {
    struct open now = descriptors();
    for (int tries = 0; tries < 500 && count(&now, "socket:") > wanted; tries++) {
        usleep(20000);
        now = descriptors();
    }
    return now;
}

/* Creates, uses and destroys each kind of object once. */
static void everything(void) {
    struct side s[2];
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    MUST(list && devices > 0);
    struct ibv_context *contexts[MOST];
    for (int i = 0; i < devices; i++) {
        MUST((contexts[i] = ibv_open_device(list[i])) != NULL);
        struct ibv_pd *pd = ibv_alloc_pd(contexts[i]);
        struct ibv_comp_channel *channel = ibv_create_comp_channel(contexts[i]);
        MUST(pd && channel);
        struct ibv_cq *cq = ibv_create_cq(contexts[i], 16, NULL, channel, 0);
        struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
        MUST(cq && window);
        SHOULD(ibv_dealloc_mw(window) == 0 && ibv_destroy_cq(cq) == 0);
        SHOULD(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
    }
    ibv_free_device_list(list);
    for (int i = 0; i < devices; i++)
        SHOULD(ibv_close_device(contexts[i]) == 0);
    for (int kind = 0; kind < 3; kind++) {
        connect_sides(s, (struct options){.shared = kind == 1, .extended = kind == 2});
        struct ibv_sge sge = piece(&s[0], 0, 64);
        for (int i = 0; i < 10; i++)
            SHOULD(receive(&s[1], i, 4096, 64) == 0);
        for (int i = 0; i < 10; i++) {
            SHOULD(post_and_wait(&s[0], (struct ibv_send_wr){.sg_list = &sge,
                                                      .num_sge = 1,
                                                      .opcode = IBV_WR_SEND,
                                                      .send_flags = IBV_SEND_SIGNALED})
                       .status == IBV_WC_SUCCESS);
            SHOULD(next_completion(&s[1]).status == IBV_WC_SUCCESS);
        }
        finish(s);
    }
    /* Resolved names, a synchronous endpoint, and one to which no program listens. */
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct rdma_cm_id *id;
    MUST(rdma_getaddrinfo("127.0.0.1", "9", &hints, &found) == 0);
    MUST(rdma_create_ep(&id, found, NULL, &attr) == 0);
    SHOULD(rdma_connect(id, NULL) == -1);
    rdma_destroy_ep(id);
    rdma_freeaddrinfo(found);
}

int main(void) {
    alarm(120);
    struct open before = descriptors(), first;
    long threads = 0;
    for (int i = 0; i < ROUNDS; i++) {
        everything();
        struct open now = without_sockets(count(&before, "socket:"));
        if (i == 0) {
            first = now;
            threads = entries("/proc/self/task");
        }
        SHOULD(now.count == first.count && entries("/proc/self/task") == threads);
    }
    /* The engine keeps its epoll and its eventfd; rdma_cm's device keeps the descriptor of its
     * events, and stays open for other ids. */
    SHOULD(count(&first, "anon_inode:[eventpoll]") == count(&before, "anon_inode:[eventpoll]") + 1);
    SHOULD(count(&first, "anon_inode:[eventfd]") == count(&before, "anon_inode:[eventfd]") + 2);
    SHOULD(first.count == before.count + 3 && threads == 2);
    if (wrong)
        for (int i = 0; i < first.count; i++)
            puts(first.what[i]);
    else
        puts("all as it should be");
    return wrong;
}
