// A DRA driver that offers the GPUs of a node of the lab, in place of NVIDIA's own, which cannot be built from Go modules.
//
// It has the name, the variables and the attributes of NVIDIA's kubelet plugin as far as a pod with whole GPUs needs them.
// GPUs are those that nvidia-smi lists under DRIVER_ROOT_CTR_PATH; containers get them by the CDI specification of the node.
// It refuses a GPU that another claim has, as NVIDIA's does. It has no MIG devices, no sharing and no compute domains.
package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driver = "gpu.nvidia.com"

type gpu struct {
	uuid, product, bus, memory, version, capability string
}

type plugin struct {
	cdi      string
	file     string // claims that are prepared, by UID
	gpus     map[string]gpu
	prepared map[types.UID][]string
	cancel   context.CancelFunc
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	node := os.Getenv("NODE_NAME")
	if node == "" {
		return errors.New("NODE_NAME is not set")
	}
	gpus, err := list(or("DRIVER_ROOT_CTR_PATH", "/"))
	if err != nil {
		return err
	}
	data := filepath.Join(or("KUBELET_PLUGINS_DIRECTORY_PATH", kubeletplugin.KubeletPluginsDir), driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	own := &plugin{
		cdi:      filepath.Join(or("CDI_ROOT", "/var/run/cdi"), "nvidia.yaml"),
		file:     filepath.Join(data, "checkpoint.json"),
		gpus:     gpus,
		prepared: map[types.UID][]string{},
		cancel:   cancel,
	}
	if err := own.load(); err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, own,
		kubeletplugin.DriverName(driver),
		kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(or("KUBELET_REGISTRAR_DIRECTORY_PATH", kubeletplugin.KubeletRegistryDir)),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	slice := resourceslice.Slice{}
	for name, one := range gpus {
		slice.Devices = append(slice.Devices, device(name, one))
	}
	resources := resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{slice}}},
	}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	return serve(ctx, or("HEALTHCHECK_PORT", ""))
}

// serve answers the kubelet's probes until the program is to end.
func serve(ctx context.Context, port string) error {
	if port == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	server, status := grpc.NewServer(), health.NewServer()
	status.SetServingStatus("liveness", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, status)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	return server.Serve(listener)
}

// list asks nvidia-smi of the node.
func list(root string) (map[string]gpu, error) {
	query := "--query-gpu=index,uuid,name,pci.bus_id,memory.total,driver_version,compute_cap"
	command := exec.Command("/usr/bin/nvidia-smi", query, "--format=csv,noheader,nounits")
	if root != "/" {
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		command.Dir = "/"
	}
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi under %s: %w: %s", root, err, text)
	}
	reader := csv.NewReader(strings.NewReader(string(text)))
	reader.TrimLeadingSpace = true
	reader.FieldsPerRecord = 7
	rows, err := reader.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	found := map[string]gpu{}
	for _, row := range rows {
		found["gpu-"+row[0]] = gpu{row[1], row[2], row[3], row[4], row[5], row[6]}
	}
	return found, nil
}

func device(name string, one gpu) resourceapi.Device {
	version := one.capability
	if strings.Count(version, ".") == 1 {
		version += ".0"
	}
	parts := strings.Split(one.version, ".")
	for i, part := range parts { // of a semantic version: no leading zeros, three parts
		if parts[i] = strings.TrimLeft(part, "0"); parts[i] == "" {
			parts[i] = "0"
		}
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	kind, driverVersion := "gpu", strings.Join(parts[:3], ".")
	bus := strings.ToLower(one.bus)
	if len(bus) > 12 { // NVML's domain has eight digits, that of sysfs four
		bus = bus[len(bus)-12:]
	}
	return resourceapi.Device{
		Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":                            {StringValue: &kind},
			"uuid":                            {StringValue: &one.uuid},
			"productName":                     {StringValue: &one.product},
			"driverVersion":                   {VersionValue: &driverVersion},
			"cudaComputeCapability":           {VersionValue: &version},
			"resource.kubernetes.io/pciBusID": {StringValue: &bus},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse(one.memory + "Mi")},
		},
	}
}

func (own *plugin) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := own.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, own.store()
}

func (own *plugin) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	specification, err := os.ReadFile(own.cdi)
	if err != nil {
		return nil, err
	}
	var devices []kubeletplugin.Device
	var names []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driver {
			continue
		}
		one, known := own.gpus[result.Device]
		if !known {
			return nil, fmt.Errorf("there is no %s", result.Device)
		}
		if !strings.Contains(string(specification), one.uuid) {
			return nil, fmt.Errorf("%s has no device %s", own.cdi, one.uuid)
		}
		shared := result.AdminAccess != nil && *result.AdminAccess
		if holder := own.holder(result.Device); holder != "" && holder != claim.UID && !shared {
			return nil, fmt.Errorf("%s is prepared for claim %s", result.Device, holder)
		}
		if !shared {
			names = append(names, result.Device)
		}
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{"nvidia.com/gpu=" + one.uuid},
		})
	}
	own.prepared[claim.UID] = names
	return devices, nil
}

func (own *plugin) holder(name string) types.UID {
	for uid, names := range own.prepared {
		for _, one := range names {
			if one == name {
				return uid
			}
		}
	}
	return ""
}

func (own *plugin) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		delete(own.prepared, claim.UID)
		results[claim.UID] = nil
	}
	return results, own.store()
}

func (own *plugin) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message+":", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		own.cancel()
	}
}

func (own *plugin) load() error {
	text, err := os.ReadFile(own.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &own.prepared)
}

func (own *plugin) store() error {
	text, err := json.Marshal(own.prepared)
	if err != nil {
		return err
	}
	if err := os.WriteFile(own.file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(own.file+".new", own.file)
}

func or(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
