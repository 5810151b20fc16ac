/* Calls functions of both libraries, rightly and wrongly, and prints whatever fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "../support/should.h"

static void questions(struct ibv_context *context) {
    struct ibv_device_attr attr;
    struct ibv_device_attr_ex more;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry, table[16];
    union ibv_gid gid;
    __be16 key;
    SHOULD(ibv_query_device(context, &attr) == 0);
    SHOULD(attr.phys_port_cnt == 1 && attr.max_qp_rd_atom > 0 && attr.max_sge > 0 &&
           attr.max_cqe > 0);
    SHOULD(ibv_query_device(context, NULL) == EINVAL);
    SHOULD(ibv_query_device(NULL, &attr) == EINVAL);
    SHOULD(ibv_query_device_ex(context, NULL, &more) == 0);
    SHOULD(memcmp(&more.orig_attr, &attr, offsetof(struct ibv_device_attr, phys_port_cnt)) == 0 &&
           more.phys_port_cnt_ex == 1);
    SHOULD(ibv_query_port(context, 1, &port) == 0);
    SHOULD(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len > 0 &&
           port.active_mtu >= IBV_MTU_256);
    SHOULD(ibv_query_port(context, 0, &port) == EINVAL);
    SHOULD(ibv_query_port(context, 2, &port) == EINVAL);
    SHOULD(ibv_query_gid(context, 1, 0, &gid) == 0);
    /* Programs take an address whose lower half is zero for none. */
    SHOULD(gid.global.interface_id != 0);
    SHOULD(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1);
    SHOULD(ibv_query_gid(context, 1, -1, &gid) == -1);
    SHOULD(ibv_query_gid(context, 9, 0, &gid) == -1);
    SHOULD(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0 && entry.ndev_ifindex > 0);
    SHOULD(ibv_query_gid_ex(context, 1, 4000, &entry, 0) == ENODATA);
    SHOULD(ibv_query_gid_table(context, table, 16, 0) >= 1);
    SHOULD(memcmp(&table[0], &entry, sizeof(entry)) == 0);
    SHOULD(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
    SHOULD(ibv_query_pkey(context, 1, 0, &key) == 0 && key == 0xffff);
    SHOULD(ibv_query_pkey(context, 1, 1, &key) == -1);
    SHOULD(ibv_get_pkey_index(context, 1, 0xffff) == 0);
}

static void events(struct ibv_context *context) {
    struct ibv_async_event event;
    struct pollfd waits = {.fd = context->async_fd, .events = POLLIN};
    SHOULD(poll(&waits, 1, 0) == 0);
    SHOULD(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    SHOULD(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
}

/* Calls that the device does not support. */
static void refusals(struct ibv_context *context) {
    struct ibv_cq_init_attr_ex cq = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_CVLAN};
    SHOULD(ibv_create_cq_ex(context, &cq) == NULL && errno == EOPNOTSUPP);
    SHOULD(ibv_create_ah(NULL, NULL) == NULL && errno == EOPNOTSUPP);
    SHOULD(ibv_attach_mcast(NULL, NULL, 0) == EOPNOTSUPP);
    SHOULD(rdma_join_multicast(NULL, NULL, NULL) == -1 && errno == EOPNOTSUPP);
}

static void names(void *library) {
    SHOULD(dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1") == dlsym(library, "ibv_get_device_"
                                                                                   "list"));
    SHOULD(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8") != NULL);
    SHOULD(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12") != NULL);
    SHOULD(dlvsym(library, "ibv_query_gid_type", "IBVERBS_PRIVATE_34") != NULL);
    SHOULD(dlvsym(library, "ibv_query_gid_type", "IBVERBS_PRIVATE_59") != NULL);
    SHOULD(dlvsym(library, "ibv_no_such_thing", "IBVERBS_1.1") == NULL);
}

int main(void) {
    int count = -1, opened = -1;
    struct ibv_device **list = ibv_get_device_list(&count), **again = ibv_get_device_list(NULL);
    struct ibv_context **contexts = rdma_get_devices(&opened);
    SHOULD(list != NULL && count > 0 && list[count] == NULL);
    /* One device has one pointer. */
    SHOULD(again != NULL && again[0] == list[0]);
    SHOULD(contexts != NULL && opened == count && contexts[opened] == NULL &&
           contexts[0]->device == list[0]);
    for (int i = 0; i < count; i++) {
        struct ibv_context *context = ibv_open_device(list[i]);
        SHOULD(context != NULL && context->device == list[i]);
        SHOULD(list[i]->transport_type == IBV_TRANSPORT_IWARP &&
               list[i]->node_type == IBV_NODE_RNIC);
        SHOULD(strncmp(ibv_get_device_name(list[i]), "iw_", 3) == 0);
        SHOULD(ibv_get_device_guid(list[i]) != 0 && ibv_get_device_index(list[i]) > 0);
        questions(context);
        events(context);
        refusals(context);
        SHOULD(ibv_close_device(context) == 0);
    }
    SHOULD(ibv_get_device_name(NULL) == NULL && ibv_get_device_guid(NULL) == 0);
    SHOULD(ibv_open_device(NULL) == NULL && errno == ENODEV);
    SHOULD(ibv_open_device((struct ibv_device *)main) == NULL && errno == ENODEV);
    SHOULD(ibv_close_device(NULL) == EINVAL);
    SHOULD(ibv_fork_init() == 0);
    SHOULD(strcmp(rdma_event_str(RDMA_CM_EVENT_REJECTED), "RDMA_CM_EVENT_REJECTED") == 0);
    names(dlopen("libibverbs.so.1", RTLD_NOW));
    rdma_free_devices(contexts);
    ibv_free_device_list(again);
    ibv_free_device_list(list);
    if (!wrong)
        puts("all as it should be");
    return wrong;
}
