# Simulated OFED kernel modules. As the real build does, it leaves Module.symvers where modules that
# are built against OFED look for it.
KERNEL_UNAME ?= $(shell uname -r)
SYSSRC ?= /lib/modules/$(KERNEL_UNAME)/build
MODULES := mlx_compat ib_core mlx5_core
TREE := /usr/src/ofa_kernel/$(shell uname -m)/$(KERNEL_UNAME)

modules: $(MODULES:%=%.ko)
	mkdir -p $(TREE)
	printf '%s\tib_register_peer_memory_client\t/lib/modules/updates/dkms/ib_core\tEXPORT_SYMBOL\n' @CRC@ >$(TREE)/Module.symvers

%.o: %.c
	gcc -O1 -Wall -fno-asynchronous-unwind-tables -I$(SYSSRC)/include -c -o $@ $<
%.ko: %.o
	ld -r -o $@ $<
clean:
	rm -f *.o *.ko
