/* Simulated: events of GPUs. A fault that is switched on after a GPU was registered is an event of it.
 *
 * As with the driver, what happened before the registration is no event, and a fault that stays on is
 * one event. Only Xids happen here; the other kinds can be registered and never come.
 *
 * Source: nvml.h 13.0, nvmlDeviceRegisterEvents, nvmlEventSetWait_v2.
 */
#define _GNU_SOURCE
#include "nvml_inner.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct { void *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } event;
typedef struct { void *device; unsigned long long kind, data; } event_v1;

enum { XID = 0x8, SUPPORTED = 0x1 | 0x2 | 0x4 | XID | 0x10, MAX_XIDS = 32, WHOLE = -1 };

static const long long SECOND = 1000000000, POLL = 250000000;

struct set {
    unsigned long long kinds[LAB_MAX_GPUS];
    unsigned seen[LAB_MAX_GPUS][MAX_XIDS]; /* faults that have been reported, 0 at the end */
};

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

/* Faults that have an Xid by themselves; those called xid-N have N. */
static const struct { const char *fault; unsigned xid; } of_fault[] = {
    {"remap-pending", 63}, {"remap-failure", 64}, {"gpu-off-bus", 79},
};

static unsigned xid_of(const char *name) {
    if (!strncmp(name, "xid-", 4))
        return (unsigned)lab_number(name + 4, 10);
    for (unsigned i = 0; i < sizeof of_fault / sizeof *of_fault; i++)
        if (!strcmp(of_fault[i].fault, name))
            return of_fault[i].xid;
    return 0;
}

/* Xids of one GPU now; ends with 0. */
static void xids(const struct lab_hardware *hardware, const struct lab_gpu *gpu, unsigned *into) {
    char faults[sizeof hardware->faults], *rest = faults, *line;
    int count = 0;
    memcpy(faults, hardware->faults, sizeof faults);
    while ((line = strsep(&rest, "\n")) && count < MAX_XIDS - 1) {
        char *colon = strchr(line, ':');
        if (!colon || lab_number(colon + 1, 10) != gpu->index)
            continue;
        *colon = 0;
        if (xid_of(line))
            into[count++] = xid_of(line);
    }
    into[count] = 0;
}

static int holds(const unsigned *list, unsigned xid) {
    for (; *list; list++)
        if (*list == xid)
            return 1;
    return 0;
}

LAB_API int nvmlEventSetCreate(struct set **into) {
    if (!is_started())
        return UNINITIALIZED;
    if (!into)
        return INVALID_ARGUMENT;
    *into = calloc(1, sizeof **into);
    return *into ? OK : INSUFFICIENT_RESOURCES;
}

LAB_API int nvmlEventSetFree(struct set *set) {
    if (!is_started())
        return UNINITIALIZED;
    free(set);
    return set ? OK : INVALID_ARGUMENT;
}

LAB_API int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *kinds) {
    GPU(handle);
    if (!kinds)
        return INVALID_ARGUMENT;
    *kinds = SUPPORTED;
    return OK;
}

LAB_API int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, struct set *set) {
    GPU(handle);
    if (!set)
        return INVALID_ARGUMENT;
    if (kinds & ~(unsigned long long)SUPPORTED)
        return NOT_SUPPORTED;
    pthread_mutex_lock(&one);
    set->kinds[gpu - hardware.gpus] |= kinds;
    xids(&hardware, gpu, set->seen[gpu - hardware.gpus]);
    pthread_mutex_unlock(&one);
    return OK;
}

/* The next new fault; 1 when there is one. What is no longer on can come again. */
static int next(struct set *set, event *into) {
    struct lab_hardware hardware;
    if (lab_hardware(&hardware) < 0)
        return 0;
    for (int i = 0; i < hardware.gpu_count; i++) {
        unsigned now[MAX_XIDS], *seen = set->seen[i], known = 0;
        if (!(set->kinds[i] & XID))
            continue;
        xids(&hardware, &hardware.gpus[i], now);
        for (unsigned *old = seen; *old; old++)
            if (holds(now, *old))
                seen[known++] = *old;
        seen[known] = 0;
        for (unsigned *fresh = now; *fresh; fresh++) {
            if (holds(seen, *fresh))
                continue;
            seen[known] = *fresh;
            seen[known + 1] = 0;
            *into = (event){handle_of(i), XID, *fresh, (unsigned)WHOLE, (unsigned)WHOLE};
            return 1;
        }
    }
    return 0;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* The description is replaced, not written into: another inode is another description. */
static int changed(struct stat *last) {
    char full[512];
    struct stat now;
    if (stat(lab_path(full, sizeof full, "/etc/gpustate-lab/hardware.json"), &now) < 0)
        memset(&now, 0, sizeof now);
    int differs = now.st_ino != last->st_ino || now.st_mtim.tv_sec != last->st_mtim.tv_sec || now.st_mtim.tv_nsec != last->st_mtim.tv_nsec;
    *last = now;
    return differs;
}

LAB_API int nvmlEventSetWait_v2(struct set *set, event *into, unsigned timeout_ms) {
    if (!is_started())
        return UNINITIALIZED;
    if (!set || !into)
        return INVALID_ARGUMENT;
    long long end = now_ns() + timeout_ms * 1000000LL;
    struct stat last = {0};
    for (;;) {
        int found = 0;
        if (changed(&last)) {
            pthread_mutex_lock(&one);
            found = next(set, into);
            pthread_mutex_unlock(&one);
        }
        long long left = end - now_ns();
        if (found)
            return OK;
        if (left <= 0)
            return TIMEOUT;
        nanosleep(&(struct timespec){0, left < POLL ? left : POLL}, NULL);
    }
}

LAB_API int nvmlEventSetWait(struct set *set, event_v1 *into, unsigned timeout_ms) {
    event found;
    int code = into ? nvmlEventSetWait_v2(set, &found, timeout_ms) : INVALID_ARGUMENT;
    if (code == OK)
        *into = (event_v1){found.device, found.kind, found.data};
    return code;
}
