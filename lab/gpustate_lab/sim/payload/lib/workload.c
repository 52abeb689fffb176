/* Simulated GPU workload: keeps a CUDA context on one GPU, so that something holds it.
 * Usage: gpustate-lab-workload [GPU index] [seconds]; without seconds it stays until it is ended.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int index = argc > 1 ? atoi(argv[1]) : 0, device = 0;
    void *context = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "gpustate-lab-workload: %s\n", dlerror());
        return 12;
    }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*get)(int *, int) = (int (*)(int *, int))dlsym(library, "cuDeviceGet");
    int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))dlsym(library, "cuCtxCreate_v2");
    int wrong = init(0);
    if (!wrong)
        wrong = get(&device, index);
    if (!wrong)
        wrong = create(&context, 0, device);
    if (wrong) {
        fprintf(stderr, "gpustate-lab-workload: CUDA error %d on GPU %d\n", wrong, index);
        return 1;
    }
    if (argc > 2)
        sleep((unsigned)atoi(argv[2]));
    else
        pause();
    return 0;
}
