/* Simulated. What the stub libraries know of the node: the hardware description, the loaded
 * module and the processes that hold a GPU. No number is read with strtol or sscanf: newer C
 * libraries give those new symbol versions, and the stubs are built on the controller and run on
 * Debian 12.
 */
#ifndef GPUSTATE_LAB_H
#define GPUSTATE_LAB_H

#include <stddef.h>
#include <stdint.h>

#define LAB_MAX_GPUS 16
#define LAB_MAX_HOLDERS 128
#define LAB_MAX_SWITCHES 8
#define LAB_API __attribute__((visibility("default")))

struct lab_gpu {
    char pci_address[16]; /* dddd:bb:dd.f, as sysfs writes it */
    char uuid[64];
    char serial[32];
    char name[64];
    unsigned index; /* in the description, which is what faults name; a container sees fewer */
    unsigned minor, device_id, subsystem_id, architecture, cc_major, cc_minor, numa_node;
    unsigned max_mig_devices, power_limit_w, sm_count, brand, max_sm_clock_mhz, max_memory_clock_mhz;
    uint64_t memory_mib, bar1_mib;
    int has_nvlink_fabric;
};

struct lab_switch {
    char pci_address[16];
    unsigned device_id, subsystem_id;
};

struct lab_hardware {
    int gpu_count; /* those whose device node can be seen, in PCI order */
    struct lab_gpu gpus[LAB_MAX_GPUS];
    int switch_count; /* NVSwitches on PCI */
    struct lab_switch switches[LAB_MAX_SWITCHES];
    int has_board; /* the GPUs sit on a board with an NVSwitch fabric */
    int needs_nvlsm; /* its switches are behind ConnectX functions */
    int in_rack; /* its switches are elsewhere and manage themselves */
    unsigned char cluster[16];
    unsigned clique;
    char faults[1024]; /* "\nname\nname:argument\n" */
};

struct lab_holder {
    int pid;
    int gpu_instance, compute_instance; /* -1: the whole GPU */
    char kind[16]; /* cuda, persistence, fabric, nvlsm, imex, other */
    char what[24]; /* PCI address, or the driver version of a fabric manager */
    uint64_t bytes;
};

/* Prefix an absolute path with $GPUSTATE_LAB_ROOT (empty on a node). */
const char *lab_path(char *buffer, size_t size, const char *path);
/* Read a small file into buffer and cut the trailing newline; the length, or -1. */
long lab_read(const char *path, char *buffer, size_t size);
int lab_write(const char *path, const char *text);
uint64_t lab_number(const char *text, int base);

/* JSON: the value of a key, the elements of an array (NULL first), and what a value is. */
const char *lab_member(const char *object, const char *key);
const char *lab_element(const char *array, const char *last);
void lab_text_of(const char *value, char *buffer, size_t size);
uint64_t lab_number_member(const char *object, const char *key, int base);

/* 0, or -1 when the node has no hardware description. */
int lab_hardware(struct lab_hardware *into);
int lab_fault(const struct lab_hardware *hardware, const char *name);
/* index: place in hardware->gpus. */
int lab_fault_at(const struct lab_hardware *hardware, const char *name, int index);
/* Version of the loaded nvidia module; -1 when it is not loaded. */
int lab_loaded_version(char *buffer, size_t size);
/* As the real libraries do: ask nvidia-modprobe, which may load the module and make nodes. what: -u for
 * those of nvidia-uvm, or -c=255 for nvidiactl and the first GPU. */
void lab_ask_modprobe(const char *what);
int lab_device(const char *path); /* this device node is there */

/* Whether this process has a PID namespace of its own in the node. */
int lab_in_container(void);
int lab_holders(struct lab_holder *into, int room);
/* Replace what this process holds: lines "kind what bytes". */
void lab_hold(const char *lines);
void lab_release(void);
/* From asking who holds a GPU until one holds it: a lock, or -1 where there is nothing to lock. */
int lab_lock_holders(void);
void lab_unlock_holders(int lock);
/* A fabric manager of the loaded version runs, with a subnet manager where there must be one; or the
 * rack's switches have done it. */
int lab_fabric_ready(const struct lab_hardware *hardware);

/* Set for each library at link time. */
LAB_API extern const char lab_driver_version[];
LAB_API extern const int lab_cuda_version;

#endif
