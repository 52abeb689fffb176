/* Simulated nvidia-cuda-mps-control: gives the daemon the command that it reads; with arguments it is the
 * daemon (nvidia_cuda_mps_control.py). Native as the real one is, for states ask it at every look.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DAEMON "/usr/lib/gpustate-lab/mps/nvidia-cuda-mps-control"

int main(int argc, char **argv) {
    if (argc > 1) {
        execv(DAEMON, argv);
        perror(DAEMON);
        return 127;
    }
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/control", pipes ? pipes : "/tmp/nvidia-mps");
    int peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (peer < 0 || connect(peer, (struct sockaddr *)&name, sizeof name) < 0) {
        fprintf(stderr, "Cannot find MPS control daemon process\n(simulated; looked at %s)\n", name.sun_path);
        return 1;
    }
    char buffer[4096];
    ssize_t size;
    while ((size = read(STDIN_FILENO, buffer, sizeof buffer)) > 0)
        if (write(peer, buffer, (size_t)size) != size)
            return 1;
    shutdown(peer, SHUT_WR);
    while ((size = read(peer, buffer, sizeof buffer)) > 0)
        if (write(STDOUT_FILENO, buffer, (size_t)size) != size)
            return 1;
    return 0;
}
