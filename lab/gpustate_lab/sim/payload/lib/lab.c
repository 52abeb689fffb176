/* Simulated. See lab.h. The JSON reader takes what gpustate_lab.sim.hardware writes: objects,
 * arrays, strings without escapes that matter, integers, true, false and null.
 */
#define _GNU_SOURCE
#include "lab.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *lab_path(char *buffer, size_t size, const char *path) {
    const char *root = secure_getenv("GPUSTATE_LAB_ROOT");
    snprintf(buffer, size, "%s%s", root ? root : "", path);
    return buffer;
}

long lab_read(const char *path, char *buffer, size_t size) {
    char full[512];
    int fd = open(lab_path(full, sizeof full, path), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t used = 0;
    ssize_t got;
    while (used + 1 < size && (got = read(fd, buffer + used, size - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    buffer[used] = 0;
    while (used && buffer[used - 1] == '\n')
        buffer[--used] = 0;
    return (long)used;
}

int lab_write(const char *path, const char *text) {
    char full[512];
    int fd = open(lab_path(full, sizeof full, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    size_t length = strlen(text);
    int bad = write(fd, text, length) != (ssize_t)length;
    close(fd);
    return bad ? -1 : 0;
}

uint64_t lab_number(const char *text, int base) {
    uint64_t value = 0;
    while (isspace((unsigned char)*text))
        text++;
    if (base == 16 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        text += 2;
    for (;; text++) {
        int digit = isdigit((unsigned char)*text)            ? *text - '0'
                    : isxdigit((unsigned char)*text) ? tolower((unsigned char)*text) - 'a' + 10
                                                     : 99;
        if (digit >= base)
            return value;
        value = value * (uint64_t)base + (uint64_t)digit;
    }
}

/* ---- JSON: the position of a value, found by walking the text ------------------------------ */

static const char *skip_space(const char *at) {
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

static const char *skip_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1])
            at++;
    return *at ? at + 1 : at;
}

/* Just after the value that starts at `at`. */
static const char *skip_value(const char *at) {
    at = skip_space(at);
    if (*at == '"')
        return skip_string(at);
    if (*at == '{' || *at == '[') {
        int depth = 0;
        while (*at) {
            if (*at == '"') {
                at = skip_string(at);
                continue;
            }
            if (*at == '{' || *at == '[')
                depth++;
            if ((*at == '}' || *at == ']') && --depth == 0)
                return at + 1;
            at++;
        }
        return at;
    }
    while (*at && !strchr(",]} \n\t\r", *at))
        at++;
    return at;
}

/* The value of `key` in the object that starts at `object`, or NULL. */
const char *lab_member(const char *object, const char *key) {
    const char *at = skip_space(object);
    if (*at != '{')
        return NULL;
    at = skip_space(at + 1);
    while (*at == '"') {
        const char *name = at + 1, *end = skip_string(at);
        size_t length = (size_t)(end - 1 - name);
        at = skip_space(end);
        if (*at == ':')
            at = skip_space(at + 1);
        if (strlen(key) == length && strncmp(name, key, length) == 0)
            return at;
        at = skip_space(skip_value(at));
        if (*at == ',')
            at = skip_space(at + 1);
    }
    return NULL;
}

/* Step through an array: pass NULL first, then the last element. */
const char *lab_element(const char *array, const char *last) {
    const char *at = skip_space(last ? skip_value(last) : array);
    if (last) {
        if (*at != ',')
            return NULL;
        return skip_space(at + 1);
    }
    if (*at != '[')
        return NULL;
    at = skip_space(at + 1);
    return *at == ']' ? NULL : at;
}

void lab_text_of(const char *value, char *buffer, size_t size) {
    size_t used = 0;
    if (value && *value == '"')
        for (value++; *value && *value != '"' && used + 1 < size; value++)
            buffer[used++] = *value;
    buffer[used] = 0;
}

static void text_member(const char *object, const char *key, char *buffer, size_t size) {
    lab_text_of(lab_member(object, key), buffer, size);
}

uint64_t lab_number_member(const char *object, const char *key, int base) {
    const char *value = lab_member(object, key);
    if (!value)
        return 0;
    return lab_number(*value == '"' ? value + 1 : value, base);
}

static int true_member(const char *object, const char *key) {
    const char *value = lab_member(object, key);
    return value && strncmp(value, "true", 4) == 0;
}

/* ---- hardware ------------------------------------------------------------------------------ */

/* A container sees only the GPUs whose node it was given, and a node without its device files
 * sees none; outside a node (unit tests) there is no dev directory, and all are seen. */
int lab_device(const char *path) {
    char full[512];
    struct stat status;
    if (secure_getenv("GPUSTATE_LAB_ROOT") && stat(lab_path(full, sizeof full, "/dev"), &status) < 0)
        return 1;
    return stat(lab_path(full, sizeof full, path), &status) == 0 && !S_ISDIR(status.st_mode);
}

static int node_seen(unsigned minor) {
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%u", minor);
    return lab_device(path);
}

static void read_gpu(const char *object, struct lab_gpu *gpu) {
    char capability[16];
    text_member(object, "pci_address", gpu->pci_address, sizeof gpu->pci_address);
    text_member(object, "uuid", gpu->uuid, sizeof gpu->uuid);
    text_member(object, "serial", gpu->serial, sizeof gpu->serial);
    text_member(object, "name", gpu->name, sizeof gpu->name);
    text_member(object, "compute_capability", capability, sizeof capability);
    gpu->minor = (unsigned)lab_number_member(object, "minor", 10);
    gpu->device_id = (unsigned)lab_number_member(object, "device_id", 16);
    gpu->subsystem_id = (unsigned)lab_number_member(object, "subsystem_id", 16);
    gpu->architecture = (unsigned)lab_number_member(object, "nvml_architecture", 10);
    gpu->cc_major = (unsigned)lab_number(capability, 10);
    const char *dot = strchr(capability, '.');
    gpu->cc_minor = dot ? (unsigned)lab_number(dot + 1, 10) : 0;
    gpu->memory_mib = lab_number_member(object, "memory_mib", 10);
    gpu->bar1_mib = lab_number_member(object, "bar1_mib", 10);
    gpu->max_mig_devices = (unsigned)lab_number_member(object, "max_mig_devices", 10);
    gpu->power_limit_w = (unsigned)lab_number_member(object, "power_limit_w", 10);
    gpu->sm_count = (unsigned)lab_number_member(object, "sm_count", 10);
    gpu->max_sm_clock_mhz = (unsigned)lab_number_member(object, "max_sm_clock_mhz", 10);
    gpu->max_memory_clock_mhz = (unsigned)lab_number_member(object, "max_memory_clock_mhz", 10);
    gpu->numa_node = (unsigned)lab_number_member(object, "numa_node", 10);
    gpu->brand = (unsigned)lab_number_member(object, "brand", 10);
    gpu->has_nvlink_fabric = true_member(object, "has_nvlink_fabric");
}

static void read_fabric(const char *text, struct lab_hardware *into) {
    const char *bridges = lab_member(text, "bridges"), *rack = lab_member(text, "rack");
    char uuid[64];
    into->needs_nvlsm = bridges && lab_element(bridges, NULL) != NULL;
    into->in_rack = rack && *rack == '{';
    if (!into->in_rack)
        return;
    into->clique = (unsigned)lab_number_member(rack, "clique", 10);
    text_member(rack, "cluster_uuid", uuid, sizeof uuid);
    int digits = 0;
    for (const char *at = uuid; *at && digits < 32; at++) {
        if (!isxdigit((unsigned char)*at))
            continue;
        char one[2] = {*at, 0};
        into->cluster[digits / 2] = (unsigned char)(into->cluster[digits / 2] << 4 | lab_number(one, 16));
        digits++;
    }
}

/* All GPUs of the description, whether their nodes can be seen or not. */
static void read_hardware(const char *text, struct lab_hardware *into) {
    memset(into, 0, sizeof *into);
    const char *gpus = lab_member(text, "gpus"), *board = lab_member(text, "board");
    into->has_board = board && *board == '"';
    read_fabric(text, into);
    for (const char *at = gpus ? lab_element(gpus, NULL) : NULL; at && into->gpu_count < LAB_MAX_GPUS; at = lab_element(gpus, at)) {
        into->gpus[into->gpu_count].index = (unsigned)into->gpu_count;
        read_gpu(at, &into->gpus[into->gpu_count++]);
    }
    const char *switches = lab_member(text, "nvswitches");
    for (const char *at = switches ? lab_element(switches, NULL) : NULL; at && into->switch_count < LAB_MAX_SWITCHES; at = lab_element(switches, at)) {
        struct lab_switch *one = &into->switches[into->switch_count++];
        text_member(at, "pci_address", one->pci_address, sizeof one->pci_address);
        one->device_id = (unsigned)lab_number_member(at, "device_id", 16);
        one->subsystem_id = (unsigned)lab_number_member(at, "subsystem_id", 16);
    }
    strcpy(into->faults, "\n");
    const char *faults = lab_member(text, "faults");
    for (const char *at = faults ? lab_element(faults, NULL) : NULL; at; at = lab_element(faults, at)) {
        char name[96];
        lab_text_of(at, name, sizeof name);
        if (strlen(into->faults) + strlen(name) + 2 < sizeof into->faults) {
            strcat(into->faults, name);
            strcat(into->faults, "\n");
        }
    }
}

/* The real libraries answer out of memory: the description is parsed again only when it is another. */
int lab_hardware(struct lab_hardware *into) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static char text[65536], parsed[65536];
    static struct lab_hardware all;
    memset(into, 0, sizeof *into);
    pthread_mutex_lock(&one);
    int found = lab_read("/etc/gpustate-lab/hardware.json", text, sizeof text) < 0 ? -1 : 0;
    if (found == 0) {
        if (strcmp(text, parsed) != 0) {
            read_hardware(text, &all);
            strcpy(parsed, text);
        }
        *into = all;
        into->gpu_count = 0;
        for (int i = 0; i < all.gpu_count; i++)
            if (node_seen(all.gpus[i].minor))
                into->gpus[into->gpu_count++] = all.gpus[i];
    }
    pthread_mutex_unlock(&one);
    return found;
}

int lab_fault(const struct lab_hardware *hardware, const char *name) {
    char wanted[112];
    snprintf(wanted, sizeof wanted, "\n%s\n", name);
    return strstr(hardware->faults, wanted) != NULL;
}

int lab_fault_at(const struct lab_hardware *hardware, const char *name, int index) {
    char wanted[104];
    snprintf(wanted, sizeof wanted, "%s:%u", name, hardware->gpus[index].index);
    return lab_fault(hardware, wanted);
}

int lab_loaded_version(char *buffer, size_t size) {
    return lab_read("/run/gpustate-lab/sys/module/nvidia/version", buffer, size) > 0 ? 0 : -1;
}

void lab_ask_modprobe(const char *what) {
    char full[512];
    if (geteuid() != 0 || access(lab_path(full, sizeof full, "/usr/bin/nvidia-modprobe"), X_OK) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        if (null >= 0) {
            dup2(null, 0);
            dup2(null, 1);
            dup2(null, 2);
        }
        execl(full, "nvidia-modprobe", what, "-c=0", (char *)NULL);
        _exit(127);
    }
    if (child > 0)
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
}

/* ---- who holds a GPU: one file a process below /run/gpustate-lab/holders --------------------
 *
 * A process of the node has a file called after its number, a process in a container one called
 * "number-namespace", for its number there means nothing here. The latter locks its file: whether the
 * lock is there says that it lives, and F_GETLK says its number in the namespace of whoever asks.
 */

/* The file that this process has locked, and its number then: a child has no part in the lock. */
static int held = -1, held_by;

/* Inode of the PID namespace that a text such as "pid:[4026531836]" names. */
static uint64_t namespace_in(const char *text) {
    const char *at = strchr(text, '[');
    return at ? lab_number(at + 1, 10) : 0;
}

static uint64_t own_namespace(void) {
    char own[64];
    ssize_t got = readlink("/proc/self/ns/pid", own, sizeof own - 1);
    own[got > 0 ? got : 0] = 0;
    return namespace_in(own);
}

int lab_in_container(void) {
    char node[64];
    return lab_read("/run/gpustate-lab/pid-namespace", node, sizeof node) > 0 && namespace_in(node) != own_namespace();
}

/* Name of this process's file; 1 when it is in another PID namespace than the node. */
static int own_file(char *path, size_t size) {
    int contained = lab_in_container();
    if (contained)
        snprintf(path, size, "/run/gpustate-lab/holders/%d-%llu", (int)getpid(), (unsigned long long)own_namespace());
    else
        snprintf(path, size, "/run/gpustate-lab/holders/%d", (int)getpid());
    return contained;
}

/* Number of the process that has locked a file, 0 when it cannot be seen from here; -1: no process has. */
static int locker(const char *path) {
    char full[512];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(lab_path(full, sizeof full, path), O_RDONLY | O_CLOEXEC);
    int locked = fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return locked ? (int)lock.l_pid : -1;
}

static long read_held(char *text, size_t size) {
    ssize_t got = held_by == (int)getpid() && held >= 0 ? pread(held, text, size - 1, 0) : -1;
    text[got > 0 ? got : 0] = 0;
    while (got > 0 && text[got - 1] == '\n')
        text[--got] = 0;
    return got;
}

static int alive(int pid) { return kill(pid, 0) == 0 || errno == EPERM; }

/* "kind what bytes", and for a MIG device "gpu-instance compute-instance" behind it */
static void read_holder(char *text, struct lab_holder *holder) {
    char *kind = text, *what = strchr(kind, ' '), *bytes = what ? strchr(what + 1, ' ') : NULL;
    char *instance = bytes ? strchr(bytes + 1, ' ') : NULL, *compute = instance ? strchr(instance + 1, ' ') : NULL;
    holder->gpu_instance = compute ? (int)lab_number(instance + 1, 10) : -1;
    holder->compute_instance = compute ? (int)lab_number(compute + 1, 10) : -1;
    if (what)
        *what++ = 0;
    if (bytes)
        *bytes++ = 0;
    snprintf(holder->kind, sizeof holder->kind, "%.15s", kind);
    snprintf(holder->what, sizeof holder->what, "%.23s", what ? what : "");
    holder->bytes = bytes ? lab_number(bytes, 10) : 0;
}

int lab_holders(struct lab_holder *into, int room) {
    char full[512];
    int count = 0;
    DIR *directory = opendir(lab_path(full, sizeof full, "/run/gpustate-lab/holders"));
    if (!directory)
        return 0;
    struct dirent *entry;
    char own[96];
    int contained = own_file(own, sizeof own);
    while ((entry = readdir(directory)) && count < room) {
        int pid = (int)lab_number(entry->d_name, 10);
        char path[512], text[1024];
        if (pid <= 0)
            continue;
        snprintf(path, sizeof path, "/run/gpustate-lab/holders/%.60s", entry->d_name);
        int is_own = contained && !strcmp(path, own);
        if (strchr(entry->d_name, '-') ? !is_own && (pid = locker(path)) < 0 : !contained && !alive(pid))
            continue;
        /* A process that closes its own file once more loses the lock. */
        if ((is_own ? read_held(text, sizeof text) : lab_read(path, text, sizeof text)) <= 0)
            continue;
        char *rest = text, *line;
        while (count < room && (line = strsep(&rest, "\n"))) {
            into[count].pid = pid;
            read_holder(line, &into[count++]);
        }
    }
    closedir(directory);
    return count;
}

void lab_hold(const char *lines) {
    char path[96], full[512];
    if (!own_file(path, sizeof path)) {
        lab_write(path, lines);
        return;
    }
    if (held_by != (int)getpid()) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        held = open(lab_path(full, sizeof full, path), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        held_by = (int)getpid();
        if (held >= 0)
            fcntl(held, F_SETLK, &lock);
    }
    size_t length = strlen(lines);
    if (held >= 0 && ftruncate(held, 0) == 0 && pwrite(held, lines, length, 0) != (ssize_t)length)
        ftruncate(held, 0);
}

void lab_release(void) {
    char full[512], path[96];
    own_file(path, sizeof path);
    unlink(lab_path(full, sizeof full, path));
    if (held >= 0 && held_by == (int)getpid())
        close(held);
    held = -1;
    held_by = 0;
}

int lab_lock_holders(void) {
    char full[512];
    int lock = open(lab_path(full, sizeof full, "/run/gpustate-lab/holders"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (lock >= 0 && flock(lock, LOCK_EX) < 0 && errno == EINTR)
        ;
    return lock;
}

void lab_unlock_holders(int lock) {
    if (lock >= 0)
        close(lock);
}

int lab_fabric_ready(const struct lab_hardware *hardware) {
    struct lab_holder holders[LAB_MAX_HOLDERS];
    char loaded[64];
    if (lab_fault(hardware, "fabric-stuck") || lab_loaded_version(loaded, sizeof loaded) < 0)
        return 0;
    if (hardware->in_rack)
        return 1;
    int count = lab_holders(holders, LAB_MAX_HOLDERS), managed = 0, subnet = !hardware->needs_nvlsm;
    for (int i = 0; i < count; i++) {
        managed |= strcmp(holders[i].kind, "fabric") == 0 && strcmp(holders[i].what, loaded) == 0;
        subnet |= strcmp(holders[i].kind, "nvlsm") == 0;
    }
    return managed && subnet;
}
