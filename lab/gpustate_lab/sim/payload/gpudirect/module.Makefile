# Simulated module of its own DKMS package, built against the sources of one NVIDIA driver.
KERNEL_UNAME ?= $(shell uname -r)
SYSSRC ?= /lib/modules/$(KERNEL_UNAME)/build
# As the real ones do: the first driver below /usr/src, which may be a stale one.
NVIDIA_SRC ?= $(shell find /usr/src/nvidia-* -name nv-version.h -print -quit 2>/dev/null | xargs -r dirname)

KIND := $(shell grep -qs GPL $(NVIDIA_SRC)/nv-version.h && printf '%s' "-DNVIDIA_KIND='\"opensource\"'")

modules: @MODULE@.ko

@MODULE@.o: @MODULE@.c
	@test -n "$(NVIDIA_SRC)" || { echo "@MODULE@.c: error: no sources of the NVIDIA driver below /usr/src" >&2; exit 1; }
	gcc -O1 -Wall -fno-asynchronous-unwind-tables -I$(SYSSRC)/include -I$(NVIDIA_SRC) $(KIND) -c -o $@ $<
%.ko: %.o
	ld -r -o $@ $<
clean:
	rm -f *.o *.ko
