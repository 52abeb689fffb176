/* Simulated: how GPUs lie to one another and to the processors, and what their NVLinks lead to.
 *
 * Every GPU has a host bridge of its own, so two are in one NUMA node or are not. On a board each link
 * leads to an NVSwitch; where those are not on PCI (B200, GB200), their addresses cannot be had.
 *
 * Source: nvml.h 13.0.
 */
#define _GNU_SOURCE
#include "nvml_inner.h"

#include <string.h>
#include <unistd.h>

enum {
    INTERNAL = 0, NODE = 40, SYSTEM = 50,
    P2P_READ = 0, P2P_WRITE = 1, P2P_NVLINK = 2, P2P_ATOMICS = 3, P2P_PCI = 4, P2P_INDICES = 5, P2P_OK = 0, P2P_NOT_SUPPORTED = 5,
    TO_SWITCH = 2, VERSION_3 = 4, VERSION_4 = 6, VERSION_5 = 7, HOPPER = 9, BLACKWELL = 10,
    CAP_SLI_BRIDGE = 4, CAPS = 6, LINK_COUNTERS = 5, RECOVERY = 1,
    BITS = 8 * sizeof(unsigned long)
};

/* ---- PCI and NUMA --------------------------------------------------------------------------- */

static unsigned distance(const struct lab_gpu *a, const struct lab_gpu *b) {
    return a == b ? INTERNAL : a->numa_node == b->numa_node ? NODE : SYSTEM;
}

/* The second GPU of a pair, in the hardware of the first. */
static int partner(void *handle, const struct lab_hardware *hardware, const struct lab_gpu **gpu) {
    struct lab_hardware again;
    struct lab_gpu *found = NULL;
    int code = find(handle, &again, &found);
    if (code == OK)
        *gpu = &hardware->gpus[found - again.gpus];
    return code;
}

LAB_API int nvmlDeviceGetTopologyCommonAncestor(void *handle, void *other, unsigned *level) {
    GPU(handle);
    const struct lab_gpu *second = NULL;
    int code = partner(other, &hardware, &second);
    return code == OK ? number(level, distance(gpu, second)) : code;
}

LAB_API int nvmlDeviceGetTopologyNearestGpus(void *handle, unsigned level, unsigned *count, void **into) {
    GPU(handle);
    if (!count)
        return INVALID_ARGUMENT;
    unsigned room = into ? *count : 0, seen = 0;
    for (int i = 0; i < hardware.gpu_count; i++) {
        if (&hardware.gpus[i] == gpu || distance(gpu, &hardware.gpus[i]) != level)
            continue;
        if (seen < room)
            into[seen] = handle_of(i);
        seen++;
    }
    return number(count, into && seen > room ? room : seen);
}

LAB_API int nvmlDeviceOnSameBoard(void *handle, void *other, int *same) {
    GPU(handle);
    const struct lab_gpu *second = NULL;
    int code = partner(other, &hardware, &second);
    if (code == OK && same)
        *same = gpu == second; /* no board of these carries two GPUs */
    return same ? code : INVALID_ARGUMENT;
}

/* Every processor is near every GPU: what runs here are the processors of the lab's machine. */
static int set_bits(unsigned size, unsigned long *set, unsigned from, unsigned to) {
    if (!set || !size)
        return INVALID_ARGUMENT;
    memset(set, 0, size * sizeof *set);
    if (to > size * BITS)
        return INSUFFICIENT_SIZE;
    for (unsigned i = from; i < to; i++)
        set[i / BITS] |= 1UL << i % BITS;
    return OK;
}

LAB_API int nvmlDeviceGetCpuAffinityWithinScope(void *handle, unsigned size, unsigned long *set, unsigned scope) {
    GPU(handle);
    return scope > 1 ? INVALID_ARGUMENT : set_bits(size, set, 0, (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
}

LAB_API int nvmlDeviceGetCpuAffinity(void *handle, unsigned size, unsigned long *set) {
    return nvmlDeviceGetCpuAffinityWithinScope(handle, size, set, 0);
}

LAB_API int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *set, unsigned scope) {
    GPU(handle);
    return scope > 1 ? INVALID_ARGUMENT : set_bits(size, set, gpu->numa_node, gpu->numa_node + 1);
}

LAB_API int nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, void **into) {
    struct lab_hardware hardware;
    if (!is_started())
        return UNINITIALIZED;
    if (!count || cpu >= (unsigned)sysconf(_SC_NPROCESSORS_ONLN) || lab_hardware(&hardware) < 0)
        return INVALID_ARGUMENT;
    unsigned room = into ? *count : 0, all = (unsigned)hardware.gpu_count;
    for (unsigned i = 0; i < all && i < room; i++)
        into[i] = handle_of((int)i);
    return number(count, into && all > room ? room : all);
}

/* ---- peer to peer --------------------------------------------------------------------------- */

LAB_API int nvmlDeviceGetP2PStatus(void *handle, void *other, unsigned index, unsigned *status) {
    GPU(handle);
    const struct lab_gpu *second = NULL;
    int code = partner(other, &hardware, &second);
    if (code != OK)
        return code;
    if (index >= P2P_INDICES)
        return INVALID_ARGUMENT;
    int linked = hardware.has_board && link_count(gpu) && link_count(second);
    int needs_links = index == P2P_NVLINK || index == P2P_ATOMICS;
    return number(status, linked || !needs_links ? P2P_OK : P2P_NOT_SUPPORTED);
}

/* ---- NVLink --------------------------------------------------------------------------------- */

/* What every function of a link starts with. */
#define LINK(handle, link)                                                                         \
    GPU(handle);                                                                                   \
    do {                                                                                           \
        if (!link_count(gpu))                                                                      \
            return NOT_SUPPORTED;                                                                  \
        if (link >= link_count(gpu))                                                               \
            return INVALID_ARGUMENT;                                                               \
    } while (0)

LAB_API int nvmlDeviceGetNvLinkVersion(void *handle, unsigned link, unsigned *version) {
    LINK(handle, link);
    return number(version, gpu->architecture >= BLACKWELL ? VERSION_5 : gpu->architecture >= HOPPER ? VERSION_4 : VERSION_3);
}

LAB_API int nvmlDeviceGetNvLinkCapability(void *handle, unsigned link, unsigned capability, unsigned *result) {
    LINK(handle, link);
    return capability >= CAPS ? INVALID_ARGUMENT : number(result, capability != CAP_SLI_BRIDGE);
}

LAB_API int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *type) {
    LINK(handle, link);
    return hardware.has_board ? number(type, TO_SWITCH) : NOT_SUPPORTED;
}

LAB_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, pci_info *info) {
    LINK(handle, link);
    if (!info)
        return INVALID_ARGUMENT;
    if (!hardware.has_board || !hardware.switch_count)
        return NOT_SUPPORTED;
    const struct lab_switch *far = &hardware.switches[link * (unsigned)hardware.switch_count / link_count(gpu)];
    describe_pci(far->pci_address, far->device_id, far->subsystem_id, info);
    return OK;
}

LAB_API int nvmlDeviceGetNvLinkRemotePciInfo(void *handle, unsigned link, pci_info *info) {
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, info);
}

LAB_API int nvmlDeviceGetNvLinkErrorCounter(void *handle, unsigned link, unsigned counter, unsigned long long *value) {
    LINK(handle, link);
    if (counter >= LINK_COUNTERS || !value)
        return INVALID_ARGUMENT;
    int down = link == 3 && lab_fault_at(&hardware, "nvlink-down", (int)(gpu - hardware.gpus));
    *value = counter == RECOVERY && down ? 3 : 0;
    return OK;
}
