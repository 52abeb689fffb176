/* Simulated: how the stub libcuda behaves beside MPS and in exclusive mode.
 *
 * With a control daemon at CUDA_MPS_PIPE_DIRECTORY (/tmp/nvidia-mps without it) a process becomes its
 * client and may share a GPU that is in EXCLUSIVE_PROCESS mode; without one, the second process to
 * want such a GPU gets error 46. The words on the socket are of the stand-in, not NVIDIA's.
 *
 * Sources: NVIDIA MPS documentation, "Environment Variables" and "Compute Modes"; CUresult table.
 */
#define _GNU_SOURCE
#include "mps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int joined = -1; /* the connection that makes this process a client; closed with the process */

unsigned lab_compute_mode(const struct lab_gpu *gpu) {
    char path[96], text[16];
    snprintf(path, sizeof path, "/run/gpustate-lab/state/compute-mode-%s", gpu->pci_address);
    return lab_read(path, text, sizeof text) > 0 ? (unsigned)lab_number(text, 10) : 0;
}

int lab_set_compute_mode(const struct lab_gpu *gpu, unsigned mode) {
    char path[96], text[16];
    snprintf(path, sizeof path, "/run/gpustate-lab/state/compute-mode-%s", gpu->pci_address);
    snprintf(text, sizeof text, "%u\n", mode);
    return lab_write(path, text);
}

static int join(const struct lab_gpu *gpu) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char full[512], path[256], answer[8] = "";
    if (joined >= 0)
        return 1;
    snprintf(path, sizeof path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
    lab_path(full, sizeof full, path);
    if (strlen(full) >= sizeof address.sun_path)
        return 0;
    strcpy(address.sun_path, full);
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || connect(made, (struct sockaddr *)&address, sizeof address) < 0) {
        if (made >= 0)
            close(made);
        return 0;
    }
    dprintf(made, "client %d %s\n", (int)getpid(), gpu->uuid);
    if (read(made, answer, sizeof answer - 1) <= 0 || strncmp(answer, "ok", 2)) {
        close(made);
        return -1;
    }
    joined = made;
    return 1;
}

int lab_may_use(const struct lab_gpu *gpu) {
    struct lab_holder holders[LAB_MAX_HOLDERS];
    unsigned mode = lab_compute_mode(gpu);
    int client = join(gpu);
    if (client < 0)
        return MPS_CONNECTION_FAILED;
    if (mode == PROHIBITED)
        return DEVICE_UNAVAILABLE;
    if (mode != EXCLUSIVE_PROCESS || client)
        return 0;
    int count = lab_holders(holders, LAB_MAX_HOLDERS);
    for (int i = 0; i < count; i++)
        if (!strcmp(holders[i].kind, "cuda") && !strcmp(holders[i].what, gpu->pci_address) && holders[i].pid != (int)getpid())
            return DEVICE_UNAVAILABLE;
    return 0;
}
