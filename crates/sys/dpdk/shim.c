/* The part of DPDK that the driver `dpdk` calls. Most of DPDK's calls on the path of a frame are
 * inline functions of headers. There is one queue each way, and a frame is in one piece. Every
 * function returns 0 or a count, or a negative errno. */

#include <errno.h>
#include <string.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

struct sprat_port {
    uint8_t mac[6];
    uint16_t mtu;
    uint16_t id;
    struct rte_mempool *pool;
};

struct sprat_frame {
    const uint8_t *bytes;
    uint32_t len;
    /* The device compared the transport's checksum. */
    uint32_t checked;
    struct rte_mbuf *mbuf;
};

static int failed(int code)
{
    if (code < 0)
        return code == -1 && rte_errno ? -rte_errno : code;
    return rte_errno ? -rte_errno : -EIO;
}

int sprat_dpdk_start(int argc, char **argv)
{
    rte_errno = 0;
    return rte_eal_init(argc, argv) < 0 ? failed(-1) : 0;
}

/* The port of a device that `name,argument=…` describes, made if it is not there yet. */
static int find(const char *device, uint16_t *port)
{
    char name[RTE_ETH_NAME_MAX_LEN];
    size_t len = strcspn(device, ",");
    int code;

    if (len >= sizeof name)
        return -ENAMETOOLONG;
    memcpy(name, device, len);
    name[len] = 0;
    if (rte_eth_dev_get_port_by_name(name, port) == 0)
        return 0;
    rte_errno = 0;
    code = rte_dev_probe(device);
    if (code < 0)
        return failed(code);
    return rte_eth_dev_get_port_by_name(name, port) == 0 ? 0 : -ENODEV;
}

int sprat_dpdk_open(const char *device, uint16_t mtu, uint16_t frames, struct sprat_port *out)
{
    static unsigned int serial;
    struct rte_eth_conf conf = {.rxmode = {.mq_mode = RTE_ETH_MQ_RX_NONE}};
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    uint16_t port, rx = 512, tx = 512;
    uint32_t room = (uint32_t)mtu + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 8;
    char name[RTE_MEMPOOL_NAMESIZE];
    int code = find(device, &port);

    if (code < 0)
        return code;
    if (rte_eth_dev_is_valid_port(port) == 0)
        return -ENODEV;
    code = rte_eth_dev_info_get(port, &info);
    if (code < 0)
        return code;
    if (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM)
        conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
    conf.rxmode.mtu = mtu;
    if (info.max_mtu != 0 && mtu > info.max_mtu)
        return -EMSGSIZE;
    rte_errno = 0;
    code = rte_eth_dev_configure(port, 1, 1, &conf);
    if (code < 0)
        return failed(code);
    rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
    if (room < RTE_MBUF_DEFAULT_DATAROOM)
        room = RTE_MBUF_DEFAULT_DATAROOM;
    if (room + RTE_PKTMBUF_HEADROOM > UINT16_MAX)
        return -EMSGSIZE;
    /* A pool that could not be freed keeps its name. The caller opens and closes one device at a
     * time. */
    snprintf(name, sizeof name, "sprat-%u-%u", port, serial++);
    rte_errno = 0;
    out->pool = rte_pktmbuf_pool_create(name, rx + tx + 4 * frames, 32, 0,
                                        room + RTE_PKTMBUF_HEADROOM, SOCKET_ID_ANY);
    if (out->pool == NULL)
        return failed(-1);
    code = rte_eth_rx_queue_setup(port, 0, rx, SOCKET_ID_ANY, NULL, out->pool);
    if (code == 0)
        code = rte_eth_tx_queue_setup(port, 0, tx, SOCKET_ID_ANY, NULL);
    if (code == 0)
        code = rte_eth_dev_start(port);
    if (code == 0)
        code = rte_eth_macaddr_get(port, &mac);
    if (code < 0) {
        rte_mempool_free(out->pool);
        return failed(code);
    }
    /* Groups are part of what a device delivers; one that has no filter delivers them anyway. */
    rte_eth_allmulticast_enable(port);
    memcpy(out->mac, mac.addr_bytes, sizeof out->mac);
    out->mtu = mtu;
    out->id = port;
    return 0;
}

/* Up to `room` frames; what is not in one piece is joined, or dropped and counted in `*dropped`. */
uint16_t sprat_dpdk_receive(uint16_t port, struct sprat_frame *frames, uint16_t room,
                            uint64_t *dropped)
{
    struct rte_mbuf *mbufs[64];
    uint16_t got = rte_eth_rx_burst(port, 0, mbufs, RTE_MIN(room, (uint16_t)64)), kept = 0;

    for (uint16_t i = 0; i < got; i++) {
        struct rte_mbuf *mbuf = mbufs[i];

        if (mbuf->nb_segs > 1 && rte_pktmbuf_linearize(mbuf) < 0) {
            rte_pktmbuf_free(mbuf);
            ++*dropped;
            continue;
        }
        frames[kept].bytes = rte_pktmbuf_mtod(mbuf, const uint8_t *);
        frames[kept].len = rte_pktmbuf_data_len(mbuf);
        frames[kept].checked =
            (mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD;
        frames[kept].mbuf = mbuf;
        kept++;
    }
    return kept;
}

void sprat_dpdk_free(struct rte_mbuf *mbuf)
{
    rte_pktmbuf_free(mbuf);
}

/* A buffer for a frame of `len` octets, and where they go; NULL if there is none. */
struct rte_mbuf *sprat_dpdk_take(struct rte_mempool *pool, uint16_t len, uint8_t **room)
{
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);

    if (mbuf == NULL)
        return NULL;
    *room = (uint8_t *)rte_pktmbuf_append(mbuf, len);
    if (*room == NULL) {
        rte_pktmbuf_free(mbuf);
        return NULL;
    }
    return mbuf;
}

/* How many of the frames, the first ones, the device has taken. */
uint16_t sprat_dpdk_send(uint16_t port, struct rte_mbuf **mbufs, uint16_t count)
{
    return rte_eth_tx_burst(port, 0, mbufs, count);
}

/* 1 if the port has a carrier. */
int sprat_dpdk_carries(uint16_t port)
{
    struct rte_eth_link link;

    return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

void sprat_dpdk_close(struct sprat_port *port)
{
    struct rte_eth_dev_info info;
    struct rte_device *device = rte_eth_dev_info_get(port->id, &info) == 0 ? info.device : NULL;

    rte_eth_dev_stop(port->id);
    rte_eth_dev_close(port->id);
    /* A virtual device is there for its port alone, and can be made anew once it is gone. */
    if (device != NULL && strcmp(rte_bus_name(rte_dev_bus(device)), "vdev") == 0)
        rte_dev_remove(device);
    /* A pool that does not have all its buffers back is left alone. */
    if (rte_mempool_full(port->pool))
        rte_mempool_free(port->pool);
}
