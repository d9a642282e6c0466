package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/registry"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

// writeLayout writes the packaged chart as an OCI artefact, with the media types of `helm push`, into an OCI image layout.
// Returns what a registry would call it: NAME:VERSION@DIGEST. The time of creation is that of the file, so the same file gives the
// same digest.
func writeLayout(ctx context.Context, file, directory string) (string, error) {
	chart, err := loader.LoadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s is no chart: %w", file, err)
	}
	information, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	config, err := json.Marshal(chart.Metadata)
	if err != nil {
		return "", err
	}
	store, err := oci.New(directory)
	if err != nil {
		return "", fmt.Errorf("%s cannot be an OCI layout: %w", directory, err)
	}
	push := func(mediaType string, blob []byte) (v1.Descriptor, error) {
		descriptor := content.NewDescriptorFromBytes(mediaType, blob)
		exists, err := store.Exists(ctx, descriptor)
		if err != nil || exists {
			return descriptor, err
		}
		return descriptor, store.Push(ctx, descriptor, bytes.NewReader(blob))
	}
	configDescriptor, err := push(registry.ConfigMediaType, config)
	if err != nil {
		return "", err
	}
	layer, err := push(registry.ChartLayerMediaType, archive)
	if err != nil {
		return "", err
	}
	manifest, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_0, "", oras.PackManifestOptions{
		ConfigDescriptor: &configDescriptor,
		Layers:           []v1.Descriptor{layer},
		ManifestAnnotations: map[string]string{
			v1.AnnotationCreated:     information.ModTime().UTC().Format(time.RFC3339),
			v1.AnnotationTitle:       chart.Metadata.Name,
			v1.AnnotationVersion:     chart.Metadata.Version,
			v1.AnnotationDescription: chart.Metadata.Description,
		},
	})
	if err != nil {
		return "", err
	}
	if err := store.Tag(ctx, manifest, chart.Metadata.Version); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s:%s@%s", chart.Metadata.Name, chart.Metadata.Version, manifest.Digest), nil
}
